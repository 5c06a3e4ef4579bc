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
