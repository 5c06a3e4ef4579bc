// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"kindex/internal/settings"
)

// GRPCConfig is the gRPC server's part of a host's configuration. Messages and
// connections are bounded by MaxBodyBytes and MaxConnections, as HTTP's are.
type GRPCConfig struct {
	GRPCListen  string // host:port; "": no gRPC
	GRPCStreams int    // calls at once of one connection
	GRPCCalls   int    // calls at once, all connections together
}

func defaultGRPCConfig() GRPCConfig {
	return GRPCConfig{GRPCStreams: 256, GRPCCalls: 8_192}
}

// grpcOptions are the settings of the gRPC server.
func (c *Config) grpcOptions() []settings.Option {
	return []settings.Option{
		settings.Text("grpc-listen", "host:port of the gRPC server; port 0 takes a free one; none: no gRPC", &c.GRPCListen, func(s string) error {
			if s == "" {
				return nil
			}
			return settings.CheckAddress(s)
		}),
		settings.Count("grpc-max-streams", "gRPC calls at once of one connection; more wait", &c.GRPCStreams, 1, 1<<16),
		settings.Count("grpc-max-calls", "gRPC calls at once, all connections together; more are refused", &c.GRPCCalls, 1, 1<<20),
	}
}
