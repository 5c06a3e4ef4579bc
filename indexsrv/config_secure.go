// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"errors"
	"fmt"
	"strings"

	"kindex/internal/secure"
	"kindex/internal/settings"
)

// SecureConfig says who may ask a host, and where. HTTP, gRPC and the admin address
// alike follow it.
type SecureConfig struct {
	TLSCert, TLSKey string // files; "": no TLS
	TLSClientCA     string // file; "": any client
	TokenFile       string // file; "": no token is asked for

	// AdminListen is the host:port of profiles, metrics, the page and all that
	// changes registrations; "": they stand on Listen.
	AdminListen string
	// OpenAdmin lets them stand on an address that others can reach and that asks
	// for no authentication.
	OpenAdmin bool
}

// hostTokens is what a host's token-file may hold.
var hostTokens = secure.TokenForm{Server: "host"}

func (c *SecureConfig) tlsFiles() secure.TLSFiles {
	return secure.TLSFiles{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA}
}

// secureOptions are the settings of who may ask.
func (c *Config) secureOptions() []settings.Option {
	return []settings.Option{
		settings.Text("tls-cert", "PEM file with the certificate of this host; turns TLS 1.3 on for HTTP, gRPC and the admin address; read again when it changes", &c.TLSCert, nil),
		settings.Text("tls-key", "PEM file with its key", &c.TLSKey, nil),
		settings.Text("tls-client-ca", "PEM file of the authorities of which every client must show a certificate (mTLS); without a token-file such a client may do everything", &c.TLSClientCA, nil),
		settings.Text("token-file", "file with bearer tokens, one a line: ROLE TOKEN [NAME], the role read, write or admin; read again when it changes", &c.TokenFile, nil),
		settings.Text("admin-listen", "host:port of profiles, metrics, the page and what changes registrations, which listen then refuses; none: they stand on listen", &c.AdminListen, func(s string) error {
			if s == "" {
				return nil
			}
			return settings.CheckAddress(s)
		}),
		settings.Toggle("open-admin", "serve them beyond loopback even where nobody has to show a token or a certificate", &c.OpenAdmin),
	}
}

// secureFaults returns what is wrong with the files and addresses that c names.
func (c *Config) secureFaults() []error {
	faults := c.tlsFiles().Faults("tls-client-ca")
	if c.TokenFile != "" {
		if err := hostTokens.Fault(c.TokenFile); err != nil {
			faults = append(faults, fmt.Errorf("token-file: %w", err))
		}
	}
	if c.AdminListen != "" && c.AdminListen == c.Listen && !strings.HasSuffix(c.Listen, ":0") {
		faults = append(faults, errors.New("admin-listen: must be another address than listen, or left out"))
	}
	return faults
}
