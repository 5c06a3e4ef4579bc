// SPDX-License-Identifier: Apache-2.0
//
// The AND of candidates with a bitset, for the kernels that have one at their end.
// Both forms take keep in R8, cand in R9, its words in R10, the bitset in R11 and
// its words in CX, and leave in AX 1 when no candidate was lost, else 0. They use
// CX, DX, R12, R13 and vectors 0-4.
//
// Once in a function: the labels are its.

// AND512: CX words of both by eights; the rest as AND256.
#define AND512 \
	VPXORQ Z4, Z4, Z4                   \
	XORL DX, DX                         \
	CMPQ CX, R10                        \
	CMOVQGT R10, CX                     \
	SUBQ $8, CX                         \
	JLT  and4to8                        \
and8:                                   \
	VMOVDQU64 (R9)(DX*8), Z0            \
	VMOVDQU64 (R11)(DX*8), Z1           \
	VPANDQ Z1, Z0, Z2                   \
	VPANDNQ Z0, Z1, Z3                  \
	VPORQ Z3, Z4, Z4                    \
	VMOVDQU64 Z2, (R8)(DX*8)            \
	ADDQ $8, DX                         \
	CMPQ DX, CX                         \
	JLE  and8                           \
	VEXTRACTI64X4 $1, Z4, Y3            \
	VPOR Y3, Y4, Y4                     \
and4to8:                                \
	ADDQ $4, CX                         \
	ANDFEW

// AND256: CX words of both by fours, then one by one; then zeros.
#define AND256 \
	VPXOR Y4, Y4, Y4                    \
	XORL DX, DX                         \
	CMPQ CX, R10                        \
	CMOVQGT R10, CX                     \
	SUBQ $4, CX                         \
	ANDFEW

// ANDFEW is the end of both: DX words are done, CX is how many there are, less four,
// and Y4 has the candidates lost.
#define ANDFEW \
	CMPQ DX, CX                         \
	JGT  andTail                        \
and4:                                   \
	VMOVDQU (R9)(DX*8), Y0              \
	VMOVDQU (R11)(DX*8), Y1             \
	VPAND Y1, Y0, Y2                    \
	VPANDN Y0, Y1, Y3                   \
	VPOR Y3, Y4, Y4                     \
	VMOVDQU Y2, (R8)(DX*8)              \
	ADDQ $4, DX                         \
	CMPQ DX, CX                         \
	JLE  and4                           \
andTail:                                \
	ADDQ $4, CX                         \
	XORL R13, R13                       \
	XORL R12, R12                       \
	VPTEST Y4, Y4                       \
	SETNE R13                           \
	JMP  andOnes                        \
and1:                                   \
	MOVQ (R9)(DX*8), R12                \
	MOVQ (R11)(DX*8), AX                \
	ANDQ R12, AX                        \
	MOVQ AX, (R8)(DX*8)                 \
	XORQ R12, AX                        \
	ORQ  AX, R13                        \
	INCQ DX                             \
andOnes:                                \
	CMPQ DX, CX                         \
	JLT  and1                           \
	JMP  andZeros                       \
andZero:                                \
	ORQ  (R9)(DX*8), R13                \
	MOVQ $0, (R8)(DX*8)                 \
	INCQ DX                             \
andZeros:                               \
	CMPQ DX, R10                        \
	JLT  andZero                        \
	XORL AX, AX                         \
	TESTQ R13, R13                      \
	SETEQ AX
