// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"indexsrv": main})
}

// TestScripts runs the program as an operator does; testdata/script has the
// dialogues.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			// A port that was free a moment ago, and one that is taken.
			for _, name := range []string{"FREE", "TAKEN"} {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					return err
				}
				env.Setenv(name, ln.Addr().String())
				if name == "FREE" {
					if err := ln.Close(); err != nil {
						return err
					}
					continue
				}
				env.Defer(func() { _ = ln.Close() })
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"http": askHTTP},
	})
}

// askHTTP is the script command "http STATUS METHOD ADDR/PATH [BODY]": it asks
// until the host answers, for no longer than 10 s, and writes what it got to the
// file "reply".
func askHTTP(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: http STATUS METHOD ADDR/PATH [BODY]")
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := askOnce(ts, args)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v", err)
		}
	}
}

func askOnce(ts *testscript.TestScript, args []string) error {
	req, err := http.NewRequest(args[1], "http://"+args[2], strings.NewReader(strings.Join(args[3:], "")))
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	reply, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if got := fmt.Sprint(resp.StatusCode); got != args[0] {
		ts.Fatalf("%v: got %s %s", args, got, reply)
	}
	return os.WriteFile(ts.MkAbs("reply"), reply, 0o600)
}
