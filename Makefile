# SPDX-License-Identifier: Apache-2.0
#
# make build   programs into ./bin
# make run     build, then all of it on loopback: mock engines, relay, index host,
#              gateway, a replayed trace, and a live table
#              (ARGS="--worker http://host:8000": a gateway before a real fleet;
#              ARGS="--worker 1=tcp://host:5557,model=m,block=16": an index host alone)
# make test    vet and the whole fast suite
# make tokenizer
#              bin/gateway with a tokenizer in it (--tokenizer PATH); needs cargo
# make test-long, test-numa, lint, bench, generate, fuzz-smoke: see CONTRIBUTING.md

.DEFAULT_GOAL := build
.PHONY: build tokenizer run test test-long test-numa lint bench generate fuzz-smoke need

# What is too big to fetch or build twice lives here: the linter, and the
# Python environments of the peers that the long tests ask.
KINDEX_CACHE ?= $(HOME)/.cache/kindex
export KINDEX_CACHE

GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(KINDEX_CACHE)/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint

# Every target that compiles needs Go, a C compiler and libzmq's headers.
need:
	@sh .ci/need

# grpcnotrace leaves out gRPC's pages for x/net/trace, which nothing here serves: with
# them the linker keeps templates and all methods that these might call, 9 MB of a
# program.
build: need
	@mkdir -p bin
	go build -tags grpcnotrace -o bin/ ./cmd/...

# The library is built from crates.io, pinned by its Cargo.lock.
tokenizer: need
	@command -v cargo >/dev/null || { echo "make tokenizer: needs cargo 1.80 or newer: https://rustup.rs" >&2; exit 1; }
	cargo build --release --locked --manifest-path tools/tokenizer-rs/Cargo.toml
	@mkdir -p bin
	go build -tags grpcnotrace,tokenizer -o bin/ ./cmd/gateway

run: build
	@exec bin/harness run $(ARGS)

test: need
	@bash .ci/test

test-long: build
	@bash .ci/test-long

test-numa: need
	@bash .ci/test-numa

lint: need $(GOLANGCI)
	$(GOLANGCI) run --timeout 20m ./...

$(GOLANGCI):
	@mkdir -p $(@D)
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

bench: need
	go test -run '^$$' -bench . -benchmem ./...

generate: need
	go generate ./...

fuzz-smoke: need
	@bash .ci/fuzz-smoke
