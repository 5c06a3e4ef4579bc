// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

#include "textflag.h"
#include "match_amd64.h"

// 7 6 5 4 3 2 1 0: a permutation that turns eight words round.
DATA turn<>+0(SB)/8, $7
DATA turn<>+8(SB)/8, $6
DATA turn<>+16(SB)/8, $5
DATA turn<>+24(SB)/8, $4
DATA turn<>+32(SB)/8, $3
DATA turn<>+40(SB)/8, $2
DATA turn<>+48(SB)/8, $1
DATA turn<>+56(SB)/8, $0
GLOBL turn<>(SB), RODATA|NOPTR, $64

// func matchForwardAVX512(a, b *uint64, n int) int
TEXT ·matchForwardAVX512(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ a+0(FP), SI
	MOVQ b+8(FP), DI
	MOVQ n+16(FP), CX
	MATCH512
	MOVQ AX, ret+24(FP)
	VZEROUPPER
	RET

// func matchForwardAVX2(a, b *uint64, n int) int
TEXT ·matchForwardAVX2(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ a+0(FP), SI
	MOVQ b+8(FP), DI
	MOVQ n+16(FP), CX
	MATCH256
	MOVQ AX, ret+24(FP)
	VZEROUPPER
	RET

// func matchReverseAVX512(a, b *uint64, n int) int
//
// R8 is behind the words of a still to come, CX how many there are in all, AX how
// many matched, Z7 the turning permutation; DX ends the loops. Steps as in MATCH512.
TEXT ·matchReverseAVX512(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ a+0(FP), SI
	MOVQ b+8(FP), DI
	MOVQ n+16(FP), CX
	MOVQ CX, DX
	LEAQ (SI)(CX*8), R8
	XORL AX, AX
	VMOVDQU64 turn<>(SB), Z7
	SUBQ $8, DX
	JLT  few
	SUBQ $24, DX
	JLT  reverse8

reverse32:
	VPERMQ   -64(R8), Z7, Z0
	VPERMQ   -128(R8), Z7, Z1
	VPERMQ   -192(R8), Z7, Z2
	VPERMQ   -256(R8), Z7, Z3
	VPCMPUQ  $4, (DI)(AX*8), Z0, K1
	VPCMPUQ  $4, 64(DI)(AX*8), Z1, K2
	VPCMPUQ  $4, 128(DI)(AX*8), Z2, K3
	VPCMPUQ  $4, 192(DI)(AX*8), Z3, K4
	KUNPCKBW K1, K2, K5
	KUNPCKBW K3, K4, K6
	KUNPCKWD K5, K6, K7
	KMOVD    K7, R12
	TESTL    R12, R12
	JNZ      differs
	ADDQ     $32, AX
	SUBQ     $256, R8
	CMPQ     AX, DX
	JLE      reverse32

reverse8:
	LEAQ -8(CX), DX
	CMPQ AX, DX
	JGE  tail

step8:
	VPERMQ  -64(R8), Z7, Z0
	VPCMPUQ $4, (DI)(AX*8), Z0, K1
	KMOVB   K1, R12
	TESTL   R12, R12
	JNZ     differs
	ADDQ    $8, AX
	SUBQ    $64, R8
	CMPQ    AX, DX
	JLT     step8

tail:
	MOVQ    DX, AX
	VPERMQ  (SI), Z7, Z0
	VPCMPUQ $4, (DI)(AX*8), Z0, K1
	KMOVB   K1, R12
	BTSL    $8, R12
	JMP     differs

few:
	// The permutation turns CX words instead of eight.
	MOVL         $-1, R12
	BZHIL        CX, R12, R13
	KMOVB        R13, K2
	VPBROADCASTQ DX, Z1
	VPADDQ       Z1, Z7, Z1
	VMOVDQU64.Z  (SI), K2, Z0
	VPERMQ       Z0, Z1, Z0
	VPCMPUQ      $4, (DI), Z0, K2, K1
	KMOVB        K1, R12
	BTSL         CX, R12

differs:
	TZCNTL R12, R12
	ADDQ   R12, AX
	MOVQ   AX, ret+24(FP)
	VZEROUPPER
	RET

// func matchReverseAVX2(a, b *uint64, n int) int
//
// Registers as above, but DX is how many are still to come; the last step takes the
// first four words of a.
TEXT ·matchReverseAVX2(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ a+0(FP), SI
	MOVQ b+8(FP), DI
	MOVQ n+16(FP), CX
	MOVQ CX, DX
	LEAQ (SI)(DX*8), R8
	XORL AX, AX

reverse16:
	CMPQ      DX, $16
	JLT       reverse4
	VPERMQ    $0x1b, -32(R8), Y0
	VPERMQ    $0x1b, -64(R8), Y1
	VPERMQ    $0x1b, -96(R8), Y2
	VPERMQ    $0x1b, -128(R8), Y3
	VPCMPEQQ  (DI)(AX*8), Y0, Y0
	VPCMPEQQ  32(DI)(AX*8), Y1, Y1
	VPCMPEQQ  64(DI)(AX*8), Y2, Y2
	VPCMPEQQ  96(DI)(AX*8), Y3, Y3
	VPAND     Y0, Y1, Y1
	VPAND     Y2, Y3, Y3
	VPAND     Y1, Y3, Y3
	VMOVMSKPD Y3, R12
	CMPL      R12, $15
	JNE       reverse4
	ADDQ      $16, AX
	SUBQ      $128, R8
	SUBQ      $16, DX
	JMP       reverse16

reverse4:
	CMPQ      DX, $4
	JLT       tail
	VPERMQ    $0x1b, -32(R8), Y0
	VPCMPEQQ  (DI)(AX*8), Y0, Y0
	VMOVMSKPD Y0, R12
	XORL      $15, R12
	JNZ       differs
	ADDQ      $4, AX
	SUBQ      $32, R8
	SUBQ      $4, DX
	JMP       reverse4

tail:
	VPERMQ    $0x1b, (SI), Y0
	LEAQ      -4(CX), AX
	VPCMPEQQ  (DI)(AX*8), Y0, Y0
	VMOVMSKPD Y0, R12
	XORL      $31, R12

differs:
	TZCNTL R12, R12
	ADDQ   R12, AX
	MOVQ   AX, ret+24(FP)
	VZEROUPPER
	RET
