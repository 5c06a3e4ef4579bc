// SPDX-License-Identifier: Apache-2.0

package secure

// A Role says what its holder may do. Each may also do what those before it may.
type Role uint8

// The roles, weakest first.
const (
	RoleNone  Role = iota // open routes: probes
	RoleRead              // ask
	RoleWrite             // change what is registered
	RoleAdmin             // look inside the program, take its state away
)

var roleNames = [...]string{"none", "read", "write", "admin"}

// String returns the name by which token files call r.
func (r Role) String() string { return roleNames[r] }

// parseRole reads a token file's word for a role.
func parseRole(word string) (Role, bool) {
	for r := RoleRead; r <= RoleAdmin; r++ {
		if word == roleNames[r] {
			return r, true
		}
	}
	return RoleNone, false
}

// Caller is who asks, as far as it was proved.
type Caller struct {
	Name string // of its token, never the token
	Role Role
}
