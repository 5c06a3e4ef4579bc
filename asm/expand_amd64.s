// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

#include "textflag.h"

// EACH(k) fills 64 bytes: which of 16 numbers, from k on, is in each word.
#define EACH(name, k) \
DATA name<>+0(SB)/8, $(k + k<<32)              \
DATA name<>+8(SB)/8, $(k + k<<32)              \
DATA name<>+16(SB)/8, $(k+1 + (k+1)<<32)       \
DATA name<>+24(SB)/8, $(k+1 + (k+1)<<32)       \
DATA name<>+32(SB)/8, $(k+2 + (k+2)<<32)       \
DATA name<>+40(SB)/8, $(k+2 + (k+2)<<32)       \
DATA name<>+48(SB)/8, $(k+3 + (k+3)<<32)       \
DATA name<>+56(SB)/8, $(k+3 + (k+3)<<32)       \
GLOBL name<>(SB), RODATA|NOPTR, $64

EACH(each0, 0)
EACH(each4, 4)
EACH(each8, 8)
EACH(each12, 12)

// Registers of both: R8 elements counted, R9 the end of dst, DI where the next one
// goes, R10 the ids of the word, R11 and SI the next words of set and mask, CX words
// to come, R12 what is left of the word, R13 the group at hand, DX its bits, BX its
// ids.

// EXACT writes the elements of the group R13 one by one, none past the end; X1 is
// the depth four times.
#define EXACT(loop, full) \
loop:                                   \
	CMPQ DI, R9                         \
	JGE  full                           \
	TZCNTL R13, AX                      \
	VPINSRD $0, (BX)(AX*4), X1, X0      \
	VMOVDQU X0, (DI)                    \
	ADDQ $16, DI                        \
	BLSRL R13, R13                      \
	JNZ  loop                           \
full:

// func expandSlotsAVX512(dst *uint32, room int, ids *uint32, set, mask *uint64, words int, depth uint32) int
//
// Sixteen bits at a time: their ids go to the front of Z0, and by fours into the
// first of each four words of Z6-Z9, whose others are the depth and stay.
TEXT ·expandSlotsAVX512(SB), NOSPLIT|NOFRAME, $0-64
	MOVQ dst+0(FP), DI
	MOVQ room+8(FP), R9
	MOVQ ids+16(FP), R10
	MOVQ set+24(FP), R11
	MOVQ mask+32(FP), SI
	MOVQ words+40(FP), CX
	SHLQ $4, R9
	ADDQ DI, R9
	XORL R8, R8
	MOVL depth+48(FP), AX
	VPBROADCASTD AX, Z1
	VMOVDQU64 each0<>(SB), Z2
	VMOVDQU64 each4<>(SB), Z3
	VMOVDQU64 each8<>(SB), Z4
	VMOVDQU64 each12<>(SB), Z5
	VMOVDQA64 Z1, Z6
	VMOVDQA64 Z1, Z7
	VMOVDQA64 Z1, Z8
	VMOVDQA64 Z1, Z9
	MOVL $0x1111, AX
	KMOVW AX, K2

word:
	MOVQ (R11), R12
	MOVQ R10, BX
	ANDQ (SI), R12
	JZ   next

group:
	MOVWLZX R12, R13
	POPCNTL R13, DX
	JZ   skip
	ADDQ DX, R8
	LEAQ 256(DI), AX
	CMPQ AX, R9
	JGT  one
	KMOVW R13, K1
	VMOVDQU32 (BX), Z0
	VPCOMPRESSD.Z Z0, K1, Z0
	SHLQ $4, DX
	VPERMD Z0, Z2, K2, Z6
	VMOVDQU64 Z6, (DI)
	CMPQ DX, $64
	JLE  wrote
	VPERMD Z0, Z3, K2, Z7
	VMOVDQU64 Z7, 64(DI)
	VPERMD Z0, Z4, K2, Z8
	VMOVDQU64 Z8, 128(DI)
	VPERMD Z0, Z5, K2, Z9
	VMOVDQU64 Z9, 192(DI)

wrote:
	ADDQ DX, DI

skip:
	ADDQ $64, BX
	SHRQ $16, R12
	JNZ  group

next:
	ADDQ $256, R10
	ADDQ $8, R11
	ADDQ $8, SI
	DECQ CX
	JNZ  word
	MOVQ R8, ret+56(FP)
	VZEROUPPER
	RET

	EXACT(one, full)
	JMP  skip

// func expandSlotsAVX2(dst *uint32, room int, ids *uint32, set, mask *uint64, words int, depth uint32, lists *[256]uint64) int
//
// Eight bits at a time: the table R14 says which ids go to the front of Y0, and
// those go by twos into the first of each four words.
TEXT ·expandSlotsAVX2(SB), NOSPLIT|NOFRAME, $0-72
	MOVQ dst+0(FP), DI
	MOVQ room+8(FP), R9
	MOVQ ids+16(FP), R10
	MOVQ set+24(FP), R11
	MOVQ mask+32(FP), SI
	MOVQ words+40(FP), CX
	MOVQ lists+56(FP), R14
	SHLQ $4, R9
	ADDQ DI, R9
	XORL R8, R8
	MOVL depth+48(FP), AX
	VMOVD AX, X1
	VPBROADCASTD X1, Y1
	VMOVDQU each0<>(SB), Y2
	VMOVDQU each0<>+32(SB), Y3
	VMOVDQU each4<>(SB), Y4
	VMOVDQU each4<>+32(SB), Y5

word:
	MOVQ (R11), R12
	MOVQ R10, BX
	ANDQ (SI), R12
	JZ   next

group:
	MOVBLZX R12, R13
	POPCNTL R13, DX
	JZ   skip
	ADDQ DX, R8
	LEAQ 128(DI), AX
	CMPQ AX, R9
	JGT  one
	VPMOVZXBD (R14)(R13*8), Y0
	VPERMD (BX), Y0, Y0
	SHLQ $4, DX
	VPERMD Y0, Y2, Y6
	VPERMD Y0, Y3, Y7
	VPBLENDD $0x11, Y6, Y1, Y6
	VPBLENDD $0x11, Y7, Y1, Y7
	VMOVDQU Y6, (DI)
	VMOVDQU Y7, 32(DI)
	CMPQ DX, $64
	JLE  wrote
	VPERMD Y0, Y4, Y6
	VPERMD Y0, Y5, Y7
	VPBLENDD $0x11, Y6, Y1, Y6
	VPBLENDD $0x11, Y7, Y1, Y7
	VMOVDQU Y6, 64(DI)
	VMOVDQU Y7, 96(DI)

wrote:
	ADDQ DX, DI

skip:
	ADDQ $32, BX
	SHRQ $8, R12
	JNZ  group

next:
	ADDQ $256, R10
	ADDQ $8, R11
	ADDQ $8, SI
	DECQ CX
	JNZ  word
	MOVQ R8, ret+64(FP)
	VZEROUPPER
	RET

	EXACT(one, full)
	JMP  skip
