// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

#include "textflag.h"
#include "match_amd64.h"
#include "and_amd64.h"

// Loads are in the order of the program, which is the order that others see on
// this machine: the version, the header with the entries, the gap stamp, the
// contents, the coverage, the stamp once more, the version.
//
// In all four: BX the run, R9 its version until the AND takes R9, SI and DI the
// contents and the chain, CX how many words both have, R10 out.

// HEADER512 copies the header at BX to R10 and leaves in CX the smaller of the
// run's length and CX. The stamp is loaded after the line with the entries.
#define HEADER512 \
	VMOVDQU64 (BX), Z0                  \
	MOVQ 32(BX), R11                    \
	VMOVDQU64 Z0, (R10)                 \
	VPEXTRQ $1, X0, R12                 \
	MOVQ R9, (R10)                      \
	MOVQ R11, 32(R10)                   \
	SHRQ $32, R12                       \
	MOVWLZX R12, R12                    \
	CMPQ R12, CX                        \
	CMOVQLT R12, CX                     \
	LEAQ 64(BX), SI

#define HEADER256 \
	VMOVDQU (BX), Y0                    \
	VMOVDQU 32(BX), Y1                  \
	MOVQ 32(BX), R11                    \
	VMOVDQU Y0, (R10)                   \
	VMOVDQU Y1, 32(R10)                 \
	VPEXTRQ $1, X0, R12                 \
	MOVQ R9, (R10)                      \
	MOVQ R11, 32(R10)                   \
	SHRQ $32, R12                       \
	MOVWLZX R12, R12                    \
	CMPQ R12, CX                        \
	CMOVQLT R12, CX                     \
	LEAQ 64(BX), SI

// MATCHFEW compares up to three words one by one, with MATCH256's registers.
#define MATCHFEW \
	XORL AX, AX                         \
	JMP  few                            \
one:                                    \
	MOVQ (SI)(AX*8), R12                \
	CMPQ R12, (DI)(AX*8)                \
	JNE  matched                        \
	INCQ AX                             \
few:                                    \
	CMPQ AX, CX                         \
	JLT  one

// BLOCK finds the holder block, whose line changes under the version only, goes to none without it
// or when nothing matched, and leaves what AND512 and AND256 want. Words go to out
// by halves of 16 bytes: each is loaded once.
#define BLOCK(none) \
	MOVL 24(BX), R11                   \
	TESTL R11, R11                      \
	JZ   none                           \
	TESTQ AX, AX                        \
	JZ   none                           \
	SHLQ $6, R11                        \
	ADDQ lines+32(FP), R11              \
	VMOVDQU (R11), X0                   \
	VMOVDQU 16(R11), X1                 \
	VMOVDQU X0, 64(R10)                 \
	VMOVDQU X1, 80(R10)                 \
	VMOVQ X0, CX                        \
	MOVWLZX CX, CX                      \
	ADDQ $24, R11                       \
	MOVQ AX, DI                         \
	MOVQ R10, SI                        \
	MOVQ keep+48(FP), R8                \
	MOVQ cand+40(FP), R9                \
	MOVQ m+56(FP), R10

// func readRunAVX512(run, chain *uint64, n int, out *[8]uint64) (match int, ok bool)
TEXT ·readRunAVX512(SB), NOSPLIT|NOFRAME, $0-41
	MOVQ run+0(FP), BX
	MOVQ chain+8(FP), DI
	MOVQ n+16(FP), CX
	MOVQ out+24(FP), R10
	MOVQ (BX), R9
	TESTQ $1, R9
	JNZ  busy
	HEADER512
	MATCH512
	MOVQ AX, match+32(FP)
	CMPQ R9, (BX)
	SETEQ ok+40(FP)
	VZEROUPPER
	RET

busy:
	MOVQ $0, match+32(FP)
	MOVB $0, ok+40(FP)
	RET

// func readRunAVX2(run, chain *uint64, n int, out *[8]uint64) (match int, ok bool)
TEXT ·readRunAVX2(SB), NOSPLIT|NOFRAME, $0-41
	MOVQ run+0(FP), BX
	MOVQ chain+8(FP), DI
	MOVQ n+16(FP), CX
	MOVQ out+24(FP), R10
	MOVQ (BX), R9
	TESTQ $1, R9
	JNZ  busy
	HEADER256
	CMPQ CX, $4
	JLT  short
	MATCH256

matched:
	MOVQ AX, match+32(FP)
	CMPQ R9, (BX)
	SETEQ ok+40(FP)
	VZEROUPPER
	RET

short:
	MATCHFEW
	JMP  matched

busy:
	MOVQ $0, match+32(FP)
	MOVB $0, ok+40(FP)
	RET

// func readRunAndAVX512(run, chain *uint64, n int, out *RunRead, lines unsafe.Pointer, cand, keep *uint64, m int) (match int, all, ok bool)
//
// During the AND, DI is the match and SI out.
TEXT ·readRunAndAVX512(SB), NOSPLIT|NOFRAME, $0-74
	MOVQ run+0(FP), BX
	MOVQ chain+8(FP), DI
	MOVQ n+16(FP), CX
	MOVQ out+24(FP), R10
	MOVQ (BX), R9
	TESTQ $1, R9
	JNZ  busy
	HEADER512
	MOVL 24(BX), R11
	SHLQ $6, R11
	ADDQ lines+32(FP), R11
	PREFETCHT0 (R11)
	MATCH512
	BLOCK(none)
	AND512
	MOVB AX, all+72(FP)
	MOVQ DI, match+64(FP)
	MOVQ 32(BX), R11
	MOVQ R11, 32(SI)
	MOVQ (SI), R9
	CMPQ R9, (BX)
	SETEQ ok+73(FP)
	VZEROUPPER
	RET

none:
	MOVQ AX, match+64(FP)
	MOVB $0, all+72(FP)
	CMPQ R9, (BX)
	SETEQ ok+73(FP)
	VZEROUPPER
	RET

busy:
	MOVQ $0, match+64(FP)
	MOVB $0, all+72(FP)
	MOVB $0, ok+73(FP)
	RET

// func readRunAndAVX2(run, chain *uint64, n int, out *RunRead, lines unsafe.Pointer, cand, keep *uint64, m int) (match int, all, ok bool)
//
// During the AND, DI is the match and SI out.
TEXT ·readRunAndAVX2(SB), NOSPLIT|NOFRAME, $0-74
	MOVQ run+0(FP), BX
	MOVQ chain+8(FP), DI
	MOVQ n+16(FP), CX
	MOVQ out+24(FP), R10
	MOVQ (BX), R9
	TESTQ $1, R9
	JNZ  busy
	HEADER256
	MOVL 24(BX), R11
	SHLQ $6, R11
	ADDQ lines+32(FP), R11
	PREFETCHT0 (R11)
	CMPQ CX, $4
	JLT  short
	MATCH256

matched:
	BLOCK(none)
	AND256
	MOVB AX, all+72(FP)
	MOVQ DI, match+64(FP)
	MOVQ 32(BX), R11
	MOVQ R11, 32(SI)
	MOVQ (SI), R9
	CMPQ R9, (BX)
	SETEQ ok+73(FP)
	VZEROUPPER
	RET

none:
	MOVQ AX, match+64(FP)
	MOVB $0, all+72(FP)
	CMPQ R9, (BX)
	SETEQ ok+73(FP)
	VZEROUPPER
	RET

short:
	MATCHFEW
	JMP  matched

busy:
	MOVQ $0, match+64(FP)
	MOVB $0, all+72(FP)
	MOVB $0, ok+73(FP)
	RET
