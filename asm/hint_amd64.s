// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

#include "textflag.h"

// func prefetchRangeAVX2(p unsafe.Pointer, n int)
TEXT ·prefetchRangeAVX2(SB), NOSPLIT|NOFRAME, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX

line:
	PREFETCHT0 (SI)
	ADDQ $64, SI
	DECQ CX
	JNZ  line
	RET

// func pauseAVX2()
TEXT ·pauseAVX2(SB), NOSPLIT|NOFRAME, $0-0
	PAUSE
	RET
