// SPDX-License-Identifier: Apache-2.0

//go:build !race && !purego

#include "textflag.h"

// func prefetchLinesAVX2(base unsafe.Pointer, lines *uint32, n int)
TEXT ·prefetchLinesAVX2(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ base+0(FP), SI
	MOVQ lines+8(FP), DI
	MOVQ n+16(FP), CX
	LEAQ (DI)(CX*4), DI
	NEGQ CX

line:
	MOVL (DI)(CX*4), AX
	SHLQ $6, AX
	PREFETCHT1 (SI)(AX*1)
	INCQ CX
	JNZ  line
	RET

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
