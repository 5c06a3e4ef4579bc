// SPDX-License-Identifier: Apache-2.0

package client

import (
	"kindex/proto/peer/common"
	"kindex/relay/normal"
)

// Op is one operation on a rank's content. Under the relay's own contract a store
// names its parent's namespace itself and nothing has to be hashed again: it has
// Contents and no tokens.
type Op = normal.Op

// Load is one reading of an engine's load.
type Load = common.EngineLoad
