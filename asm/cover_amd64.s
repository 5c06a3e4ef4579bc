// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

#include "textflag.h"
#include "cover_amd64.h"

// func andWordsAVX512(keep, cand *uint64, n int, bits *uint64, m int) (all bool)
TEXT ·andWordsAVX512(SB), NOSPLIT|NOFRAME, $0-41
	MOVQ keep+0(FP), R8
	MOVQ cand+8(FP), R9
	MOVQ n+16(FP), R10
	MOVQ bits+24(FP), R11
	MOVQ m+32(FP), CX
	AND512
	MOVB AX, all+40(FP)
	VZEROUPPER
	RET

// func andWordsAVX2(keep, cand *uint64, n int, bits *uint64, m int) (all bool)
TEXT ·andWordsAVX2(SB), NOSPLIT|NOFRAME, $0-41
	MOVQ keep+0(FP), R8
	MOVQ cand+8(FP), R9
	MOVQ n+16(FP), R10
	MOVQ bits+24(FP), R11
	MOVQ m+32(FP), CX
	AND256
	MOVB AX, all+40(FP)
	VZEROUPPER
	RET

// LISTFEW lists the bits of the word R12, whose first has the number BX, one by one
// into dst R8 of R9 elements at AX, and counts on where dst is full. R13 is used.
#define LISTFEW(loop, full) \
loop:                                   \
	TZCNTQ R12, R13                     \
	ADDQ BX, R13                        \
	CMPQ AX, R9                         \
	JGE  full                           \
	MOVQ R13, (R8)(AX*8)                \
full:                                   \
	INCQ AX                             \
	BLSRQ R12, R12                      \
	JNZ  loop

// LIST512 lists the lowest byte of R12: the numbers of its bits, by the table one
// byte each, are widened, added to Z0 and stored, all eight. (Compressing numbers by
// the byte as a mask takes 1.7 times as long on Zen 4, and compressing straight
// into memory a hundred times.)
#define LIST512 \
	MOVBLZX R12, R13                    \
	VPMOVZXBQ (SI)(R13*8), Z1           \
	VPADDQ Z0, Z1, Z1                   \
	VMOVDQU64 Z1, (R8)(AX*8)            \
	POPCNTL R13, R13                    \
	VPADDQ Z2, Z0, Z0                   \
	SHRQ $8, R12                        \
	ADDQ R13, AX

// func listBitsAVX512(dst *uint64, n int, bits *uint64, m int, add uint64, lists *[256]uint64) int
//
// R8 dst, R9 n, R10 the next word, R11 words to come, BX the number of its first
// bit, AX listed so far, SI the table; Z2 is 8 everywhere.
TEXT ·listBitsAVX512(SB), NOSPLIT|NOFRAME, $0-56
	MOVQ dst+0(FP), R8
	MOVQ n+8(FP), R9
	MOVQ bits+16(FP), R10
	MOVQ m+24(FP), R11
	MOVQ add+32(FP), BX
	MOVQ lists+40(FP), SI
	XORL AX, AX
	MOVL $8, R12
	VPBROADCASTQ R12, Z2

word:
	MOVQ (R10), R12
	POPCNTQ R12, DX
	CMPQ DX, $10
	JLE  few
	LEAQ 8(AX)(DX*1), R13
	CMPQ R13, R9
	JGT  some
	VPBROADCASTQ BX, Z0
	LIST512
	LIST512
	LIST512
	LIST512
	LIST512
	LIST512
	LIST512
	LIST512

next:
	ADDQ $8, R10
	ADDQ $64, BX
	DECQ R11
	JNZ  word
	MOVQ AX, ret+48(FP)
	VZEROUPPER
	RET

few:
	TESTQ DX, DX
	JZ   next

some:
	LISTFEW(one, full)
	JMP  next

// LIST256 is LIST512 in two halves, with Y0.
#define LIST256 \
	MOVBLZX R12, R13                    \
	VPMOVZXBQ (SI)(R13*8), Y1           \
	VPMOVZXBQ 4(SI)(R13*8), Y2          \
	VPADDQ Y0, Y1, Y1                   \
	VPADDQ Y0, Y2, Y2                   \
	VMOVDQU Y1, (R8)(AX*8)              \
	VMOVDQU Y2, 32(R8)(AX*8)            \
	POPCNTL R13, R13                    \
	VPADDQ Y3, Y0, Y0                   \
	SHRQ $8, R12                        \
	ADDQ R13, AX

// func listBitsAVX2(dst *uint64, n int, bits *uint64, m int, add uint64, lists *[256]uint64) int
//
// Registers as above; Y3 is 8 everywhere.
TEXT ·listBitsAVX2(SB), NOSPLIT|NOFRAME, $0-56
	MOVQ dst+0(FP), R8
	MOVQ n+8(FP), R9
	MOVQ bits+16(FP), R10
	MOVQ m+24(FP), R11
	MOVQ add+32(FP), BX
	MOVQ lists+40(FP), SI
	XORL AX, AX
	MOVL $8, R12
	VMOVQ R12, X3
	VPBROADCASTQ X3, Y3

word:
	MOVQ (R10), R12
	POPCNTQ R12, DX
	CMPQ DX, $10
	JLE  few
	LEAQ 8(AX)(DX*1), R13
	CMPQ R13, R9
	JGT  some
	VMOVQ BX, X0
	VPBROADCASTQ X0, Y0
	LIST256
	LIST256
	LIST256
	LIST256
	LIST256
	LIST256
	LIST256
	LIST256

next:
	ADDQ $8, R10
	ADDQ $64, BX
	DECQ R11
	JNZ  word
	MOVQ AX, ret+48(FP)
	VZEROUPPER
	RET

few:
	TESTQ DX, DX
	JZ   next

some:
	LISTFEW(one, full)
	JMP  next
