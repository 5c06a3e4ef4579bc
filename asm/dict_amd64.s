// SPDX-License-Identifier: Apache-2.0

//go:build amd64 && !race && !purego

#include "textflag.h"
#include "funcdata.h"

// Registers of all kernels here:
//
//	SI, CX  keys and how many       R12  t.Lines
//	R8      base of the words       R13  number of the key in work
//	DI      hits, out or misses     R14, R15  factors of the mixed hash
//
// Lines are asked into the second cache only: it has room for more requests under
// way than the first. On a Zen 5 core a table of 32 MiB takes 11 ns a key with
// PREFETCHT0 and 7 with PREFETCHT1.
//
// The stack holds what was worked out ahead: line's byte offset << 16 | tag, of
// key i in slot i mod 128; then t.Rest, t.Old, the end of the words and the windows.
#define RING 128
#define REST 1024(SP)
#define OLD 1032(SP)
#define END 1040(SP)
#define WINDOW 1048(SP)
#define OLDWINDOW 1056(SP)

// SETUP loads the registers from the table at AX.
#define SETUP \
	MOVQ 0(AX), R8; \
	MOVQ 8(AX), BX; \
	LEAQ (R8)(BX*8), BX; \
	MOVQ BX, END; \
	MOVQ 24(AX), R12; \
	MOVQ 32(AX), BX; \
	MOVQ BX, OLD; \
	MOVQ 40(AX), BX; \
	MOVQ BX, REST; \
	MOVQ 48(AX), BX; \
	MOVQ BX, WINDOW; \
	MOVQ 56(AX), BX; \
	MOVQ BX, OLDWINDOW; \
	MOVQ $0x9E3779B97F4A7C15, R14; \
	MOVQ $0xD6E8FEB86659FD93, R15; \
	XORL R11, R11; \
	XORL R13, R13

// HASH works out key R11 into ring slot R10, and asks for its home line.
#define HASH \
	MOVQ (SI)(R11*8), DX; \
	XORQ R14, DX; \
	MULXQ R15, AX, DX; \
	XORQ AX, DX; \
	IMULQ R14, DX; \
	MOVQ R12, R9; \
	MOVQ WINDOW, BX; \
	CMPQ DX, REST; \
	CMOVQLS OLD, R9; \
	CMOVQLS OLDWINDOW, BX; \
	SHRXQ BX, DX, BX; \
	MOVWLZX BX, BX; \
	MULXQ R9, AX, R9; \
	SHLQ $6, R9; \
	PREFETCHT1 (R8)(R9*1); \
	CMPL BX, $1; \
	ADCL $0, BX; \
	SHLQ $16, R9; \
	ORQ BX, R9; \
	MOVQ R9, (SP)(R10*8)

// HIT adds key R13 to the hits when AX is not 0. There is room for a hit a key,
// so the word is written anyway.
#define HIT \
	MOVL R13, (DI); \
	XORL BX, BX; \
	TESTL AX, AX; \
	SETNE BX; \
	LEAQ (DI)(BX*4), DI

// func dictInsertAVX512(t *DictTable, keys []uint64, first uint32, hits []uint32) int
TEXT ·dictInsertAVX512(SB), 0, $1064-72
	NO_LOCAL_POINTERS
	MOVQ t+0(FP), AX
	MOVQ keys_base+8(FP), SI
	MOVQ keys_len+16(FP), CX
	MOVQ hits_base+40(FP), DI
	TESTQ CX, CX
	JEQ done
	SETUP

fill:
	MOVQ R11, R10
	HASH
	INCQ R11
	CMPQ R11, CX
	JEQ loop
	CMPQ R11, $RING
	JLT fill

loop:
	MOVL R13, R10
	ANDL $(RING-1), R10
	MOVQ (SP)(R10*8), R9
	VPBROADCASTW R9, Y1
	MOVWLZX R9, DX
	SHRQ $16, R9
	ADDQ R8, R9
	VMOVDQU (R9), Y0
	VPTESTNMW Y0, Y0, K2
	VPCMPEQW Y0, Y1, K1
	KMOVD K2, BX
	KMOVD K1, AX
	BTL $10, BX              // the overflow count is 0
	JCC slow
	TZCNTL BX, BX
	CMPL BX, $10             // no slot is free
	JEQ slow
	MOVW DX, (R9)(BX*2)
	MOVL first+32(FP), DX
	ADDL R13, DX
	MOVL DX, 24(R9)(BX*4)
	ANDL $0x3ff, AX

placed:
	HIT
	LEAQ RING(R13), R11
	INCQ R13
	CMPQ R11, CX
	JGE last
	HASH

last:
	CMPQ R13, CX
	JLT loop

done:
	MOVQ DI, AX
	SUBQ hits_base+40(FP), AX
	SHRQ $2, AX
	MOVQ AX, ret+64(FP)
	VZEROUPPER
	RET

slow:
	XORL R10, R10            // 1 once it is placed
	XORL R11, R11            // tags seen

walk:
	VMOVDQU (R9), Y0
	VPCMPEQW Y0, Y1, K1
	KMOVD K1, AX
	ANDL $0x3ff, AX
	ORL AX, R11
	TESTL R10, R10
	JNE counted
	VPTESTNMW Y0, Y0, K2
	KMOVD K2, BX
	ANDL $0x3ff, BX
	JEQ full
	TZCNTL BX, BX
	MOVW DX, (R9)(BX*2)
	MOVL first+32(FP), AX
	ADDL R13, AX
	MOVL AX, 24(R9)(BX*4)
	MOVL $1, R10

counted:
	CMPW 20(R9), $0
	JEQ found
	JMP further

full:
	CMPW 20(R9), $-1
	JEQ further
	INCW 20(R9)

further:
	ADDQ $64, R9
	CMPQ R9, END
	JCS walk
	TESTL R10, R10
	JEQ none

found:
	MOVL R11, AX
	MOVL R13, R10
	ANDL $(RING-1), R10
	JMP placed

none:
	MOVQ $-1, AX
	MOVQ AX, ret+64(FP)
	VZEROUPPER
	RET

// func dictInsertAVX2(t *DictTable, keys []uint64, first uint32, hits []uint32) int
TEXT ·dictInsertAVX2(SB), 0, $1064-72
	NO_LOCAL_POINTERS
	MOVQ t+0(FP), AX
	MOVQ keys_base+8(FP), SI
	MOVQ keys_len+16(FP), CX
	MOVQ hits_base+40(FP), DI
	TESTQ CX, CX
	JEQ done
	SETUP
	VPXOR Y2, Y2, Y2

fill:
	MOVQ R11, R10
	HASH
	INCQ R11
	CMPQ R11, CX
	JEQ loop
	CMPQ R11, $RING
	JLT fill

loop:
	MOVL R13, R10
	ANDL $(RING-1), R10
	MOVQ (SP)(R10*8), R9
	VMOVD R9, X1
	VPBROADCASTW X1, Y1
	MOVWLZX R9, DX
	SHRQ $16, R9
	ADDQ R8, R9
	VMOVDQU (R9), Y0
	VPCMPEQW Y0, Y2, Y3
	VPCMPEQW Y0, Y1, Y4
	VPMOVMSKB Y3, BX         // two bits a lane
	VPMOVMSKB Y4, AX
	BTL $20, BX              // the overflow count is 0
	JCC slow
	TZCNTL BX, BX
	CMPL BX, $20             // no slot is free
	JEQ slow
	MOVW DX, (R9)(BX*1)
	MOVL first+32(FP), DX
	ADDL R13, DX
	MOVL DX, 24(R9)(BX*2)
	ANDL $0xfffff, AX

placed:
	HIT
	LEAQ RING(R13), R11
	INCQ R13
	CMPQ R11, CX
	JGE last
	HASH

last:
	CMPQ R13, CX
	JLT loop

done:
	MOVQ DI, AX
	SUBQ hits_base+40(FP), AX
	SHRQ $2, AX
	MOVQ AX, ret+64(FP)
	VZEROUPPER
	RET

slow:
	XORL R10, R10            // 1 once it is placed
	XORL R11, R11            // tags seen

walk:
	VMOVDQU (R9), Y0
	VPCMPEQW Y0, Y1, Y4
	VPMOVMSKB Y4, AX
	ANDL $0xfffff, AX
	ORL AX, R11
	TESTL R10, R10
	JNE counted
	VPCMPEQW Y0, Y2, Y3
	VPMOVMSKB Y3, BX
	ANDL $0xfffff, BX
	JEQ full
	TZCNTL BX, BX
	MOVW DX, (R9)(BX*1)
	MOVL first+32(FP), AX
	ADDL R13, AX
	MOVL AX, 24(R9)(BX*2)
	MOVL $1, R10

counted:
	CMPW 20(R9), $0
	JEQ found
	JMP further

full:
	CMPW 20(R9), $-1
	JEQ further
	INCW 20(R9)

further:
	ADDQ $64, R9
	CMPQ R9, END
	JCS walk
	TESTL R10, R10
	JEQ none

found:
	MOVL R11, AX
	MOVL R13, R10
	ANDL $(RING-1), R10
	JMP placed

none:
	MOVQ $-1, AX
	MOVQ AX, ret+64(FP)
	VZEROUPPER
	RET

// func dictDeleteAVX512(t *DictTable, keys []uint64, first uint32) int
TEXT ·dictDeleteAVX512(SB), 0, $1064-48
	NO_LOCAL_POINTERS
	MOVQ t+0(FP), AX
	MOVQ keys_base+8(FP), SI
	MOVQ keys_len+16(FP), CX
	XORL DI, DI
	TESTQ CX, CX
	JEQ done
	SETUP

fill:
	MOVQ R11, R10
	HASH
	INCQ R11
	CMPQ R11, CX
	JEQ loop
	CMPQ R11, $RING
	JLT fill

loop:
	MOVL R13, R10
	ANDL $(RING-1), R10
	MOVQ (SP)(R10*8), R9
	MOVL first+32(FP), DX
	ADDL R13, DX
	VPBROADCASTW R9, Y1
	SHRQ $16, R9
	ADDQ R8, R9
	MOVQ R9, R11             // home

here:
	VPCMPEQW (R9), Y1, K1
	KMOVD K1, AX
	ANDL $0x3ff, AX

try:
	TZCNTL AX, BX
	JCS walk                 // not in this line
	CMPL DX, 24(R9)(BX*4)
	JEQ found
	BLSRL AX, AX
	JMP try

found:
	XORL AX, AX
	MOVW AX, (R9)(BX*2)
	CMPQ R11, R9
	JNE uncount

gone:
	LEAQ RING(R13), R11
	INCQ R13
	CMPQ R11, CX
	JGE last
	HASH

last:
	CMPQ R13, CX
	JLT loop

done:
	MOVQ DI, ret+40(FP)
	VZEROUPPER
	RET

walk:
	CMPW 20(R9), $0
	JEQ missing
	ADDQ $64, R9
	CMPQ R9, END
	JCS here

missing:
	INCQ DI
	JMP gone

uncount:
	CMPW 20(R11), $-1
	JEQ 2(PC)
	DECW 20(R11)
	ADDQ $64, R11
	CMPQ R11, R9
	JNE uncount
	JMP gone

// func dictDeleteAVX2(t *DictTable, keys []uint64, first uint32) int
TEXT ·dictDeleteAVX2(SB), 0, $1064-48
	NO_LOCAL_POINTERS
	MOVQ t+0(FP), AX
	MOVQ keys_base+8(FP), SI
	MOVQ keys_len+16(FP), CX
	XORL DI, DI
	TESTQ CX, CX
	JEQ done
	SETUP

fill:
	MOVQ R11, R10
	HASH
	INCQ R11
	CMPQ R11, CX
	JEQ loop
	CMPQ R11, $RING
	JLT fill

loop:
	MOVL R13, R10
	ANDL $(RING-1), R10
	MOVQ (SP)(R10*8), R9
	MOVL first+32(FP), DX
	ADDL R13, DX
	VMOVD R9, X1
	VPBROADCASTW X1, Y1
	SHRQ $16, R9
	ADDQ R8, R9
	MOVQ R9, R11             // home

here:
	VPCMPEQW (R9), Y1, Y4
	VPMOVMSKB Y4, AX
	ANDL $0x55555, AX        // one bit a tag

try:
	TZCNTL AX, BX
	JCS walk                 // not in this line
	CMPL DX, 24(R9)(BX*2)
	JEQ found
	BLSRL AX, AX
	JMP try

found:
	XORL AX, AX
	MOVW AX, (R9)(BX*1)
	CMPQ R11, R9
	JNE uncount

gone:
	LEAQ RING(R13), R11
	INCQ R13
	CMPQ R11, CX
	JGE last
	HASH

last:
	CMPQ R13, CX
	JLT loop

done:
	MOVQ DI, ret+40(FP)
	VZEROUPPER
	RET

walk:
	CMPW 20(R9), $0
	JEQ missing
	ADDQ $64, R9
	CMPQ R9, END
	JCS here

missing:
	INCQ DI
	JMP gone

uncount:
	CMPW 20(R11), $-1
	JEQ 2(PC)
	DECW 20(R11)
	ADDQ $64, R11
	CMPQ R11, R9
	JNE uncount
	JMP gone

// func dictProbeAVX512(t *DictTable, keys []uint64, out []uint32)
TEXT ·dictProbeAVX512(SB), 0, $1064-56
	NO_LOCAL_POINTERS
	MOVQ t+0(FP), AX
	MOVQ keys_base+8(FP), SI
	MOVQ keys_len+16(FP), CX
	MOVQ out_base+32(FP), DI
	TESTQ CX, CX
	JEQ done
	SETUP

fill:
	MOVQ R11, R10
	HASH
	INCQ R11
	CMPQ R11, CX
	JEQ loop
	CMPQ R11, $RING
	JLT fill

loop:
	MOVL R13, R10
	ANDL $(RING-1), R10
	MOVQ (SP)(R10*8), R9
	VPBROADCASTW R9, Y1
	SHRQ $16, R9
	ADDQ R8, R9

here:
	VPCMPEQW (R9), Y1, K1
	KMOVD K1, AX
	ANDL $0x3ff, AX
	JEQ further
	TZCNTL AX, AX
	MOVL 24(R9)(AX*4), DX

found:
	MOVL DX, (DI)(R13*4)
	LEAQ RING(R13), R11
	INCQ R13
	CMPQ R11, CX
	JGE last
	HASH

last:
	CMPQ R13, CX
	JLT loop

done:
	VZEROUPPER
	RET

further:
	XORL DX, DX
	CMPW 20(R9), $0
	JEQ found
	ADDQ $64, R9
	CMPQ R9, END
	JCS here
	JMP found

// func dictProbeAVX2(t *DictTable, keys []uint64, out []uint32)
TEXT ·dictProbeAVX2(SB), 0, $1064-56
	NO_LOCAL_POINTERS
	MOVQ t+0(FP), AX
	MOVQ keys_base+8(FP), SI
	MOVQ keys_len+16(FP), CX
	MOVQ out_base+32(FP), DI
	TESTQ CX, CX
	JEQ done
	SETUP

fill:
	MOVQ R11, R10
	HASH
	INCQ R11
	CMPQ R11, CX
	JEQ loop
	CMPQ R11, $RING
	JLT fill

loop:
	MOVL R13, R10
	ANDL $(RING-1), R10
	MOVQ (SP)(R10*8), R9
	VMOVD R9, X1
	VPBROADCASTW X1, Y1
	SHRQ $16, R9
	ADDQ R8, R9

here:
	VPCMPEQW (R9), Y1, Y4
	VPMOVMSKB Y4, AX
	ANDL $0xfffff, AX
	JEQ further
	TZCNTL AX, AX
	MOVL 24(R9)(AX*2), DX

found:
	MOVL DX, (DI)(R13*4)
	LEAQ RING(R13), R11
	INCQ R13
	CMPQ R11, CX
	JGE last
	HASH

last:
	CMPQ R13, CX
	JLT loop

done:
	VZEROUPPER
	RET

further:
	XORL DX, DX
	CMPW 20(R9), $0
	JEQ found
	ADDQ $64, R9
	CMPQ R9, END
	JCS here
	JMP found

// func dictPrefetchAVX2(t *DictTable, keys []uint64)
TEXT ·dictPrefetchAVX2(SB), NOSPLIT, $0-32
	MOVQ t+0(FP), AX
	MOVQ keys_base+8(FP), SI
	MOVQ keys_len+16(FP), CX
	TESTQ CX, CX
	JEQ done
	MOVQ 0(AX), R8
	MOVQ 24(AX), R12
	MOVQ 32(AX), R10
	MOVQ 40(AX), R13
	MOVQ $0x9E3779B97F4A7C15, R14
	MOVQ $0xD6E8FEB86659FD93, R15
	LEAQ (SI)(CX*8), CX

loop:
	MOVQ (SI), DX
	XORQ R14, DX
	MULXQ R15, AX, DX
	XORQ AX, DX
	IMULQ R14, DX
	MOVQ R12, R9
	CMPQ DX, R13
	CMOVQLS R10, R9
	MULXQ R9, AX, R9
	SHLQ $6, R9
	PREFETCHT1 (R8)(R9*1)
	ADDQ $8, SI
	CMPQ SI, CX
	JNE loop

done:
	RET
