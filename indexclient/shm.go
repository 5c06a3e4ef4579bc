// SPDX-License-Identifier: Apache-2.0

package indexclient

import (
	"context"

	"kindex/internal/lookup"
)

// dialShared returns the host behind the socket at path.
func dialShared(_ context.Context, path string, _ *Options) (lookup.Index, error) {
	return nil, lookup.Refuse(ErrInvalid, "target: unix:%s: shared memory is not part of this build: use host:port", path)
}
