// SPDX-License-Identifier: Apache-2.0

package index

import (
	"net/url"
	"strings"
)

// addressOf returns the host:port of a worker's URL.
func addressOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		_, rest, _ := strings.Cut(text, "://")
		return rest
	}
	return u.Host
}
