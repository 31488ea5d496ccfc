# The front door. `make help` lists what is behind it.

.DEFAULT_GOAL := help
.PHONY: help up down test lint bench model fuzz reference test-reference tools

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

MOORLINE := target/release/moorline

up: tools ## bring up the embedded Kubernetes with a PostgreSQL on three nodes
	cargo build --release --locked --package moorline-cli
	@scripts/up $(MOORLINE)

down: ## end it; PURGE=1 removes its data as well
	@scripts/down $(MOORLINE)

test: lint model ## everything that must pass: lint, unit, property, model and documentation tests
	BOLERO_RANDOM_SEED=1 cargo test --workspace --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --locked --no-deps --quiet

lint: tools ## format and clippy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

model: tools ## model checks of the queue: loom explores small cases, shuttle samples larger ones
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --locked --package moorline-queue --test loom
	RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test --locked --package moorline-queue --test shuttle

bench: tools ## measure beside the peers, print a table, write target/bench/report.json
	cargo build --profile bench --locked --package moorline-cli
	cargo run --profile bench --locked --package moorline-bench

fuzz: tools ## every decoder under chance, a minute each or as long as SECONDS_EACH says; `make test` takes a fixed few inputs
	BOLERO_RANDOM_TEST_TIME_MS=$${SECONDS_EACH:-60}000 BOLERO_RANDOM_ITERATIONS=1000000000 \
		cargo test --locked --package moorline-fuzz -- --test-threads 2

reference: ## build a real kube-apiserver and etcd to be held against, into a cache outside the repository
	@scripts/reference

test-reference: tools reference ## the same requests to this API server and to the real one
	MOORLINE_REFERENCE=required cargo test --locked --package moorline-reference --package moorline-example-mailbox -- --nocapture

tools:
	@scripts/tools
