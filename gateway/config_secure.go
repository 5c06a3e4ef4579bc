// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"strings"

	"kindex/internal/secure"
	"kindex/internal/settings"
)

// gatewayKeys is what an api-key-file may hold: a key that stands alone in its line may
// send requests.
var gatewayKeys = secure.TokenForm{Server: "gateway", Bare: secure.RoleRead}

func (c *ListenConfig) tlsFiles() secure.TLSFiles {
	return secure.TLSFiles{Cert: c.TLSCert, Key: c.TLSKey, ClientCA: c.TLSClientCA}
}

// secureOptions are the settings of who may ask.
func (c *ListenConfig) secureOptions() []settings.Option {
	return []settings.Option{
		settings.Text("tls-cert", "PEM file with the certificate of this gateway; turns TLS 1.3 on for HTTP, gRPC and the admin address; read again when it changes", &c.TLSCert, nil),
		settings.Text("tls-key", "PEM file with its key", &c.TLSKey, nil),
		settings.Text("tls-client-ca", "PEM file of the authorities of which every client must show a certificate (mTLS); without an api-key-file such a client may do everything", &c.TLSClientCA, nil),
		settings.Text("api-key-file", "file with API keys, one a line: KEY, or ROLE KEY [NAME] with a role of read (send requests), write (change workers) or admin (metrics, profiles); read again when it changes", &c.APIKeyFile, nil),
		settings.Toggle("open-admin", "let anybody change workers beyond loopback where no key and no certificate is asked for", &c.OpenAdmin),
	}
}

// secureFaults returns what is wrong with the files and addresses that c names.
func (c *ListenConfig) secureFaults() []error {
	faults := c.tlsFiles().Faults("tls-client-ca")
	if c.APIKeyFile != "" {
		if err := gatewayKeys.Fault(c.APIKeyFile); err != nil {
			faults = append(faults, fmt.Errorf("api-key-file: %w", err))
		}
	}
	taken := map[string]string{}
	for _, a := range [][2]string{{"listen", c.Listen}, {"admin-listen", c.AdminListen}, {"grpc-listen", c.GRPCListen}} {
		name, addr := a[0], a[1]
		if addr == "" || strings.HasSuffix(addr, ":0") {
			continue
		}
		if other := taken[addr]; other != "" {
			faults = append(faults, errors.New(name+": must be another address than "+other))
		}
		taken[addr] = name
	}
	return faults
}
