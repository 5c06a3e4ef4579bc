// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"os"
	"path/filepath"
)

// CacheEnv names the folder for what is too big to make twice, as the Makefile has it.
const CacheEnv = "KINDEX_CACHE"

// CacheDir returns a folder of that name within the cache, made if need be.
func CacheDir(name string) (string, error) {
	dir := os.Getenv(CacheEnv)
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "kindex")
	}
	dir = filepath.Join(dir, name)
	return dir, os.MkdirAll(dir, 0o755)
}
