// SPDX-License-Identifier: Apache-2.0

//go:build !purego

#include "textflag.h"

// func pause(n int)
// A loop of PAUSE: no Go form gives the core to its other thread meanwhile.
TEXT ·pause(SB), NOSPLIT|NOFRAME, $0-8
	MOVQ n+0(FP), CX
again:
	PAUSE
	DECQ CX
	JG   again
	RET

// func own(p unsafe.Pointer, lines int)
// A loop of PREFETCHW: no Go form asks for a line without waiting for it.
TEXT ·own(SB), NOSPLIT|NOFRAME, $0-16
	MOVQ p+0(FP), AX
	MOVQ lines+8(FP), CX
	JMP  test
more:
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), which the assembler does not know
	ADDQ $64, AX
	DECQ CX
test:
	TESTQ CX, CX
	JG   more
	RET
