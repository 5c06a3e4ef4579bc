// SPDX-License-Identifier: Apache-2.0

package trial

import "strings"

// OneOf joins names with commas and a last "or".
func OneOf(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
