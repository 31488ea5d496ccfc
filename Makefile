# The front door. `make help` lists what is behind it.

.DEFAULT_GOAL := help
.PHONY: help up test lint bench model reference test-reference tools

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## bring up the embedded Kubernetes with a database
	@echo "There is no database to bring up yet: the embedded Kubernetes serves its API, but runs no pods. See the README for"
	@echo "how to try the API, or run 'make test' or 'make bench'."

test: lint model ## everything that must pass: lint, unit, property, model and documentation tests
	cargo test --workspace --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --locked --no-deps --quiet

lint: tools ## format and clippy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

model: tools ## model checks of the queue: loom explores small cases, shuttle samples larger ones
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --locked --package moorline-queue --test loom
	RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test --locked --package moorline-queue --test shuttle

bench: tools ## measure beside the peers, print a table, write target/bench/report.json
	cargo run --profile bench --locked --package moorline-bench

reference: ## build a real kube-apiserver and etcd to be held against, into a cache outside the repository
	@scripts/reference

test-reference: tools reference ## the same requests to this API server and to the real one
	MOORLINE_REFERENCE=required cargo test --locked --package moorline-reference -- --nocapture

tools:
	@scripts/tools
