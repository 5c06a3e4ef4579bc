// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"net"

	"kindex/internal/settings"
)

// TraceConfig says where traces go.
type TraceConfig struct {
	OTLPEndpoint string  // host:port of a collector's gRPC; "": no traces
	OTLPInsecure bool    // without TLS
	OTLPRatio    float64 // of the requests that come without a sampled context
	OTLPService  string  // what traces call this program; "": kindex-gateway
}

func (c *TraceConfig) options() []settings.Option {
	return []settings.Option{
		settings.Text("otlp-endpoint", "host:port of an OpenTelemetry collector's gRPC, which gets traces; none: nothing is traced", &c.OTLPEndpoint, func(s string) error {
			if s == "" {
				return nil
			}
			if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" || port == "0" {
				return fmt.Errorf("%.200q must be host:port", s)
			}
			return settings.CheckAddress(s)
		}),
		settings.Toggle("otlp-insecure", "speak to it without TLS", &c.OTLPInsecure),
		settings.Number("otlp-ratio", "share of requests traced, 0 to 1; one whose traceparent says it is sampled is always", &c.OTLPRatio, 0, 1),
		settings.Text("otlp-service", "what traces call this program; none: kindex-gateway", &c.OTLPService, func(s string) error {
			if len(s) > 128 {
				return errors.New("must have 128 bytes at most")
			}
			return nil
		}),
	}
}

func (c *TraceConfig) traceFaults() []error {
	if c.OTLPInsecure && c.OTLPEndpoint == "" {
		return []error{errors.New("otlp-insecure: it needs otlp-endpoint")}
	}
	return nil
}
