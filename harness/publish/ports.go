// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"net"
	"strconv"
)

// FreePorts returns the first of n consecutive TCP ports of the loopback that nobody
// listens on now. Somebody else may take one before the caller does.
func FreePorts(n int) (int, error) {
	const tries = 200
	var last error
	for range tries {
		first, err := freeRun(n)
		if err == nil {
			return first, nil
		}
		last = err
	}
	return 0, fmt.Errorf("%d consecutive free ports: %w", n, last)
}

func freeRun(n int) (int, error) {
	var open []net.Listener
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	first := 0
	for i := range n {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first)))
		if err != nil {
			return 0, err
		}
		open = append(open, l)
		if i == 0 {
			at, ok := l.Addr().(*net.TCPAddr)
			if !ok {
				return 0, fmt.Errorf("%v is no TCP address", l.Addr())
			}
			first = at.Port
		}
		first++
	}
	return first - n, nil
}
