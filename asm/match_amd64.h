// SPDX-License-Identifier: Apache-2.0
//
// The forward compare, for the kernels that have one in their middle. Both forms
// leave in AX how many of the first CX words at SI and DI are equal, and use DX,
// R12, R13, vectors 0-3 and masks 1-7. Neither reads past the windows.
//
// Once in a function: the labels are its.

// MATCH512 takes any CX >= 0. Fewer than eight words are masked; else the last step
// takes the last eight, of which the first may have been compared before. The bit
// behind the last word stands in for a difference, so that neither needs a branch.
// (A masked last step for all would read, with an empty mask, what lies behind a
// window, and wait for it; on a page not there yet, for an assist.)
#define MATCH512 \
	XORL AX, AX                         \
	MOVQ CX, DX                         \
	SUBQ $8, DX                         \
	JLT  matchFew                       \
	SUBQ $24, DX                        \
	JLT  match8                         \
match32:                                \
	VMOVDQU64 (SI)(AX*8), Z0            \
	VMOVDQU64 64(SI)(AX*8), Z1          \
	VMOVDQU64 128(SI)(AX*8), Z2         \
	VMOVDQU64 192(SI)(AX*8), Z3         \
	VPCMPUQ $4, (DI)(AX*8), Z0, K1      \
	VPCMPUQ $4, 64(DI)(AX*8), Z1, K2    \
	VPCMPUQ $4, 128(DI)(AX*8), Z2, K3   \
	VPCMPUQ $4, 192(DI)(AX*8), Z3, K4   \
	KUNPCKBW K1, K2, K5                 \
	KUNPCKBW K3, K4, K6                 \
	KUNPCKWD K5, K6, K7                 \
	KMOVD K7, R12                       \
	TESTL R12, R12                      \
	JNZ  matchDiffers                   \
	ADDQ $32, AX                        \
	CMPQ AX, DX                         \
	JLE  match32                        \
match8:                                 \
	LEAQ -8(CX), DX                     \
	CMPQ AX, DX                         \
	JGE  matchTail                      \
matchStep8:                             \
	VMOVDQU64 (SI)(AX*8), Z0            \
	VPCMPUQ $4, (DI)(AX*8), Z0, K1      \
	KMOVB K1, R12                       \
	TESTL R12, R12                      \
	JNZ  matchDiffers                   \
	ADDQ $8, AX                         \
	CMPQ AX, DX                         \
	JLT  matchStep8                     \
matchTail:                              \
	MOVQ DX, AX                         \
	VMOVDQU64 (SI)(AX*8), Z0            \
	VPCMPUQ $4, (DI)(AX*8), Z0, K1      \
	KMOVB K1, R12                       \
	BTSL $8, R12                        \
	JMP  matchDiffers                   \
matchFew:                               \
	MOVL $-1, R12                       \
	BZHIL CX, R12, R13                  \
	KMOVB R13, K2                       \
	VMOVDQU64.Z (SI), K2, Z0            \
	VPCMPUQ $4, (DI), Z0, K2, K1        \
	KMOVB K1, R12                       \
	BTSL CX, R12                        \
matchDiffers:                           \
	TZCNTL R12, R12                     \
	ADDQ R12, AX

// MATCH256 takes any CX >= 4. Its last step takes the last four words, of which
// the first may have been compared before.
#define MATCH256 \
	XORL AX, AX                         \
	MOVQ CX, DX                         \
	SUBQ $16, DX                        \
	JLT  match4                         \
match16:                                \
	VMOVDQU (SI)(AX*8), Y0              \
	VMOVDQU 32(SI)(AX*8), Y1            \
	VMOVDQU 64(SI)(AX*8), Y2            \
	VMOVDQU 96(SI)(AX*8), Y3            \
	VPCMPEQQ (DI)(AX*8), Y0, Y0         \
	VPCMPEQQ 32(DI)(AX*8), Y1, Y1       \
	VPCMPEQQ 64(DI)(AX*8), Y2, Y2       \
	VPCMPEQQ 96(DI)(AX*8), Y3, Y3       \
	VPAND Y0, Y1, Y1                    \
	VPAND Y2, Y3, Y3                    \
	VPAND Y1, Y3, Y3                    \
	VMOVMSKPD Y3, R12                   \
	CMPL R12, $15                       \
	JNE  match4                         \
	ADDQ $16, AX                        \
	CMPQ AX, DX                         \
	JLE  match16                        \
match4:                                 \
	MOVQ CX, DX                         \
	SUBQ $4, DX                         \
matchStep4:                             \
	CMPQ AX, DX                         \
	JGT  matchTail                      \
	VMOVDQU (SI)(AX*8), Y0              \
	VPCMPEQQ (DI)(AX*8), Y0, Y0         \
	VMOVMSKPD Y0, R12                   \
	XORL $15, R12                       \
	JNZ  matchDiffers                   \
	ADDQ $4, AX                         \
	JMP  matchStep4                     \
matchTail:                              \
	MOVQ DX, AX                         \
	VMOVDQU (SI)(AX*8), Y0              \
	VPCMPEQQ (DI)(AX*8), Y0, Y0         \
	VMOVMSKPD Y0, R12                   \
	XORL $31, R12                       \
matchDiffers:                           \
	TZCNTL R12, R12                     \
	ADDQ R12, AX
