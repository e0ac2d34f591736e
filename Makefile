# Verbs of the project. Each does its own set-up; all that is needed is Go (and a C compiler for `make race` alone).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

GO ?= go
TOOL := $(GO) tool -modfile=tools/go.mod
# The race detector wants a C compiler. These packages start goroutines or are shared by them; a whole training step
# would take too long under it, and tests that limit the time of hostile files are left out.
RACE := ./internal/... ./device/cpu/par ./run/log ./corpus ./format ./format/safetensors ./hub

export CGO_ENABLED = 0

.PHONY: build man test vet race lint bench kernels golden notices check cross size static test-strict current emulate browser proofs falsify falsify-sample fuzz fuzz-sample trust gpu-test gpu-binaries gates help

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## bin/apr for this machine
	$(GO) build -o bin/apr ./cmd/apr

# Tests make small heaps, which Go's default collects all the time: a tenth of their processor time. make vet has vetted
# what they run.
test test-strict race emulate vulkan browser falsify-sample: export GOGC = 400
# Without a limit the tests of cmd/apr, which run whole trainings in one process, come to 22 GB.
test test-strict race emulate vulkan browser falsify-sample: export GOMEMLIMIT = 5GiB

test: vet ## vet, formatting, all tests
	$(GO) test -vet=off ./...

vet: ## vet and formatting
	$(GO) vet ./...
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w: $$unformatted"; exit 1; fi

race: ## the race detector over the packages that share memory
	CGO_ENABLED=1 $(GO) test -race -vet=off -count=1 -skip HostileCost $(RACE)

emulate: ## the CUDA device and its kernels on an emulated GPU (needs a C++ compiler)
	$(GO) vet -tags emulate ./device/cuda/... ./model ./generate ./distill ./prune ./bench ./bench/families ./cmd/apr
	$(GO) test -vet=off -timeout 40m -tags emulate ./device/cuda/...
	$(GO) test -vet=off -timeout 40m -tags emulate -run 'CUDA|Emulated|Decode|GenerationPlan|TeacherIsNot|TeacherResidency|DistillAgrees|BackendsAgree' ./model ./generate ./distill ./prune ./bench ./cmd/apr

# llvmpipe computes on the processor. A machine without it fails: nothing is skipped.
.PHONY: vulkan
vulkan: ## the Vulkan device on Mesa's llvmpipe (needs Debian's mesa-vulkan-drivers and libvulkan1)
	$(GO) vet -tags vulkan ./device/vulkan/... ./model ./distill ./cmd/apr
	@# both at once: the references in float64 use one core, llvmpipe all
	$(GO) test -vet=off -count=1 -timeout 40m -tags vulkan ./device/vulkan/... & kernels=$$!; \
	$(GO) test -vet=off -count=1 -timeout 40m -tags vulkan -run Vulkan ./model ./distill ./cmd/apr; models=$$?; \
	wait $$kernels && exit $$models
	CGO_ENABLED=1 $(GO) test -race -vet=off -count=1 -tags vulkan -run 'Streams|Probe' ./device/vulkan

# What no test of a second can try: all 2³² roundings, and scripts for the solver z3.
proofs: ## every rounding of a float32 to bfloat16, and the proofs of z3 where it is installed
	$(GO) test -count=1 -tags proofs -run RoundEvery ./tensor
	@if command -v z3 >/dev/null; then $(GO) test -count=1 -tags z3 ./proofs; else echo "UNAVAILABLE: z3 is not on PATH"; fi

falsify: ## every check of contracts/, and every mutant that it must find
	$(GO) run ./cmd/apr contract falsify --allow-unavailable

# What CI has time for, of each change. The checks of one of them run on the emulated GPU.
SAMPLE := batch-honesty-v1 cuda-unified-memory-allocator-v1 distillation-smoke-v1 kernel-prewarm-v1 number-formats-v1

falsify-sample: ## the same for five contracts
	$(GO) run ./cmd/apr contract falsify --allow-unavailable $(SAMPLE)

fuzz: ## tests of malformed files, and 20 million executions of the fuzz targets (FUZZTIME=60s: time for each instead); rewrites the table of docs/interop.md
	$(GO) run ./tools/fuzz/main.go -execs 21000000 -least 20000000 $(if $(FUZZTIME),-fuzztime $(FUZZTIME)) -docs docs/interop.md

fuzz-sample: ## the same with a million executions; the document stays
	$(GO) run ./tools/fuzz/main.go

# What was found on a GPU, by the same checks: make gpu-test writes it to $$APR_GPU_OUT/contracts.json.
CARD := docs/trust-card.json

# An hour on two cores; each contract's report is kept below bin, so that it can be interrupted.
trust: ## write docs/trust.md: what make falsify found for the commit at hand, beside what was found on a GPU
	@git diff --quiet HEAD -- ':!docs/trust.md' || { echo "trust: commit first: it is a commit that is reported on"; exit 1; }
	@kept=bin/trust/$$(git rev-parse HEAD); mkdir -p $$kept; $(GO) build -o $$kept/apr ./cmd/apr; \
	for id in $$(basename -s .yaml contracts/*.yaml); do \
		[ -e $$kept/$$id.json ] || { $$kept/apr contract falsify --allow-unavailable --json $$id > $$kept/$$id.tmp && \
			mv $$kept/$$id.tmp $$kept/$$id.json; } || { echo "trust: $$id is not upheld"; exit 1; }; \
	done; \
	cat $$kept/*.json | $(GO) run ./tools/trust/main.go $(wildcard $(CARD)) > docs/trust.md

browser: ## reports and the live page in headless Chromium (needs chromium)
	$(GO) vet -tags browser ./cmd/apr
	$(GO) test -vet=off -tags browser -count=1 -run Browser ./cmd/apr

# Packages with tests for a GPU, and what runs there without Go.
GPU_PACKAGES := device/cuda model distill bench bench/families cmd/apr
GPU_BINARIES ?= bin/gpu

# Programs of the same package with different mutants are nearly equal: with a window that holds some of them, the archive is
# little larger than one of each.
gpu-binaries: ## bin/gpu and bin/gpu.tar.xz: apr, tests for a GPU, those of contracts with their mutants, for a machine without Go
	mkdir -p $(GPU_BINARIES)
	for p in $(GPU_PACKAGES); do $(GO) test -c -tags gpu -trimpath -ldflags '-s -w' -o $(GPU_BINARIES)/$${p//\//-}.test ./$$p; done
	$(GO) build -trimpath -ldflags '-s -w' -o $(GPU_BINARIES)/apr ./cmd/apr
	$(GO) build -trimpath -ldflags '-s -w' -o $(GPU_BINARIES)/gputable ./bench/gputable
	$(GO) run ./tools/prebuild/main.go -o $(GPU_BINARIES)/contracts
	tar --sort=name -C $(GPU_BINARIES) -c . | xz -T1 --x86 --lzma2=preset=6,dict=192MiB > $(GPU_BINARIES).tar.xz
	@ls -l $(GPU_BINARIES).tar.xz

gpu-test: ## on a machine with a GPU: its tests, the contracts' checks for it, the race against PyTorch, and one table
	bench/gpu-test.sh

# Flags of bench/students, such as STUDENTS="-backend cuda -jobs 4 -rates .5,1,2".
STUDENTS ?=

.PHONY: students students-card teacher-30m
students: build ## write the table of docs/students.md: students of every kind, three seeds (4 hours on two cores; STUDENTS=FLAGS of bench/students)
	mkdir -p runs
	$(GO) run ./bench/students -name gosrc -log runs/students-gosrc.jsonl -docs docs/students.md $(STUDENTS)

teacher-30m: build ## runs/teacher-30m.apr: a second teacher of 29M parameters, trained on Go's own source (wants a GPU; minutes there)
	mkdir -p runs
	$(GO) run ./bench/gosource -goroot "$$($(GO) env GOROOT)" -o runs/gosource.jsonl.zst
	bin/apr distill examples/gosrc/teacher-30m.yaml -o runs/teacher-30m $(DISTILL)
	cp runs/teacher-30m/student.apr runs/teacher-30m.apr

CARD_FOLDER := bin/card

students-card: ## bin/card and bin/card.tar.xz: what bench/students/card.sh needs on a machine with a GPU and without Go
	mkdir -p $(CARD_FOLDER)
	for p in cmd/apr bench/students bench/quantaware; do $(GO) build -trimpath -ldflags '-s -w' -o $(CARD_FOLDER)/ ./$$p; done
	$(GO) run ./bench/gosource -goroot "$$($(GO) env GOROOT)" -o $(CARD_FOLDER)/gosource.jsonl.zst
	tar --sort=name -C $(CARD_FOLDER) -c . | xz -T1 --x86 --lzma2=preset=6,dict=64MiB > $(CARD_FOLDER).tar.xz
	@ls -l $(CARD_FOLDER).tar.xz

# Figures of a GPU: bench/gpu-test.sh writes them to $$APR_GPU_OUT/families.json.
FAMILIES_CARD := docs/families-card.json

.PHONY: families
families: ## write the table of docs/models.md: every family measured (LLAMA=COMMAND starts llama.cpp's programs; a C++ compiler the emulated GPU)
	@dir=$$(mktemp -d); trap 'rm -rf '$$dir EXIT; args=(-docs docs/models.md -card $(FAMILIES_CARD)); \
	if command -v c++ g++ clang++ >/dev/null; then \
		FAMILIES_OUT=$$dir/emulated.json $(GO) test -count=1 -timeout 60m -tags emulate -run TestDevice ./bench/families || echo "the emulated GPU has wrong figures: see the table"; \
		args+=(-emulated $$dir/emulated.json); fi; \
	if [ -n "$${LLAMA:-}" ]; then $(GO) run ./bench/interop -llama-cpp "$$LLAMA" -families | tee $$dir/interop.md; args+=(-interop $$dir/interop.md); fi; \
	$(GO) run ./bench/families "$${args[@]}"

.PHONY: interop
interop: ## write the tables of docs/interop.md (LLAMA=COMMAND starts llama.cpp's programs; PARTS=families for those of random models)
	bench/interop.sh $(PARTS)

gates: build ## the model of testdata passes four gates, and six broken variants of it fail each (1 minute)
	bin/apr eval testdata/models/gosrc --data examples/gosrc/data/gosrc-val.jsonl.zst --threshold 10
	bin/apr eval testdata/models/gosrc --task choice --data examples/gosrc/eval/choice.jsonl --threshold 0.95
	bin/apr eval testdata/models/gosrc --task match --data examples/gosrc/eval/match.jsonl --threshold 0.95
	bin/apr eval testdata/models/gosrc --task code --data examples/gosrc/eval/code.jsonl --max-tokens 48 --threshold 0.9

torture: ## the proofs of reliability, whole (under 10 minutes on two cores); they rewrite the table of docs/reliability.md
	@log=$$(mktemp); trap 'rm -f '$$log EXIT; start=$$SECONDS; load=$$(cut -d' ' -f1 /proc/loadavg); \
	APR_TORTURE=1 $(GO) test -count=1 -p 1 -v -timeout 20m -run 'Torture|TestResumeIsBitExact' ./distill ./run/supervise ./cmd/apr > $$log 2>&1 || { cat $$log; exit 1; }; \
	rows=$$(sed -n 's/.*TORTURE |/|/p' $$log); echo "$$rows"; \
	{ sed '/<!-- torture -->/q' docs/reliability.md; printf '| proof | trials | bad | control |\n|---|---:|---:|---|\n'; echo "$$rows"; \
	printf '\n%s, %s processors, %d s in all; the load was %s before.\n' "$$($(GO) env GOOS GOARCH | paste -sd/)" "$$(nproc)" $$((SECONDS - start)) "$$load"; sed -n '/<!-- end -->/,$$p' docs/reliability.md; } > docs/.reliability.tmp; \
	mv docs/.reliability.tmp docs/reliability.md

lint: ## golangci-lint with .golangci.yml
	$(TOOL) golangci-lint run ./...

bench: ## all benchmarks, shortly; compare two outputs with `go tool -modfile=tools/go.mod benchstat`
	$(GO) test -run '^$$' -bench . -benchtime 200ms ./...

kernels: ## write the generated assembly of device/cpu and quant, the PTX of device/cuda (needs clang-19) and the SPIR-V of device/vulkan, and the compiled templates of run/report
	$(GO) generate ./device/cpu/... ./quant ./device/cuda/kernel ./device/vulkan/kernel ./run/report

golden: ## rewrite the files that tests compare the program's own output with; read the diff before committing it
	$(GO) test ./cmd/apr -run Schema -update

bin/apr:
	$(MAKE) build

man: bin/apr ## bin/man/man1: a manual page of every command and topic, made from the tables that make --help
	@rm -rf bin/man && mkdir -p bin/man/man1 && bin/apr help man > bin/man/man1/apr.1
	@for c in $$(bin/apr __complete help '' 2>/dev/null | grep '^[a-z]'); do \
		bin/apr help man $$c > bin/man/man1/apr-$$c.1 || exit 1; \
		case $$c in runs|tokenize|contract) for s in $$(bin/apr __complete $$c '' 2>/dev/null | grep '^[a-z]' | cut -f1); do \
			bin/apr help man $$c $$s > bin/man/man1/apr-$$c-$$s.1 || exit 1; done;; esac; \
	done

notices: ## write THIRD_PARTY_NOTICES.md from go.mod
	$(GO) run ./tools/notices/main.go > .notices.tmp
	mv .notices.tmp THIRD_PARTY_NOTICES.md

static: ## the program without the CUDA device, a static binary
	$(GO) build -tags static -o /dev/null ./cmd/apr

# Systems that programs are released for and that tests do not run on.
OTHERS := linux/arm64 darwin/arm64 windows/amd64

cross: static ## what must also build: the other systems of a release, and the static binary
	GOOS=linux GOARCH=arm64 $(GO) build -trimpath ./...
	@for t in $(OTHERS); do echo "go vet for $$t"; GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) vet -trimpath ./...; done

.PHONY: release release-check neon
release: ## dist: programs for Linux, macOS and Windows, licences, an SPDX list of what is inside, checksums
	cd tools && $(GO) run ./release -root .. -o ../dist

release-check: ## the same in two folders: the bytes must be equal (FRESH=-fresh compiles everything twice)
	cd tools && $(GO) test -count=1 ./release && $(GO) run ./release -root .. -check $(FRESH)

# Only what is faster than Go under the emulator, of the longest tests. On an arm64 machine `make test` runs them all.
neon: ## the tests of the arm64 assembly on an emulated processor (needs qemu-aarch64)
	GOARCH=arm64 $(GO) test -trimpath -count=1 -exec qemu-aarch64 -run '/neon|SameBits' ./device/cpu/gemm
	GOARCH=arm64 $(GO) test -trimpath -count=1 -exec qemu-aarch64 ./device/cpu/q8 ./device/cpu/vec

# A test that skips has not passed, and neither has a cached one or none at all.
test-strict: vet ## vet, formatting, all tests afresh; a skipped test fails
	@report=$$(mktemp); trap 'rm -f '$$report EXIT; \
	$(TOOL) gotestsum --format standard-quiet --hide-summary=skipped --jsonfile $$report -- -count=1 -vet=off -timeout 60m ./...; \
	if grep -E '"Action":"skip".*"Test":' $$report; then echo "tests were skipped: see above"; exit 1; fi; \
	passed=$$(grep -cE '"Action":"pass".*"Test":' $$report || true); \
	echo "$$passed tests and subtests passed, none skipped"; [ "$$passed" -gt 0 ]

# What a tool writes must be what it would write now.
current: ## generated assembly and notices are up to date
	@files='device/cuda/kernel/ptx/* device/vulkan/kernel/spirv/* run/report/*.qtpl.go device/cpu/*/*_a*64.s device/cpu/*/stubs_*.go quant/*_amd64.s quant/stubs_*.go THIRD_PARTY_NOTICES.md'; \
	before=$$(sha256sum $$files); $(GO) run ./tools/ptx/main.go -check; $(GO) run ./tools/wgsl/main.go -check; $(MAKE) --no-print-directory kernels notices; \
	diff <(echo "$$before") <(sha256sum $$files) || { echo "generated files were out of date: commit the new ones"; exit 1; }

# A program that people download: what grows it is seen here, not by them.
SIZE_LIMIT := 30000000

openai-client: ## OpenAI's client library talks to apr serve, if its modules can be fetched
	@cd tools/openai; if $(GO) mod download; then $(GO) test -count=1 ./...; else echo 'openai-client: its modules cannot be fetched'; fi

size: ## the stripped program is not larger than 30 MB
	@file=$$(mktemp); trap 'rm -f '$$file EXIT; $(GO) build -trimpath -ldflags '-s -w' -o $$file ./cmd/apr; \
	bytes=$$(stat -c %s $$file); echo "the stripped program has $$bytes bytes of at most $(SIZE_LIMIT)"; [ $$bytes -le $(SIZE_LIMIT) ]

check: build cross size test-strict current lint ## what a change needs before it is sent
