# Every command that the README names. `make help` lists them.

PREFIX ?= /usr/local
DESTDIR ?=

CARGO ?= cargo
target := $(abspath $(or $(CARGO_TARGET_DIR),target))
release := $(target)/release

bin := $(DESTDIR)$(PREFIX)/bin
lib := $(DESTDIR)$(PREFIX)/lib/uncopy
man := $(DESTDIR)$(PREFIX)/share/man/man1
# What programs are linked with.
libraries := $(DESTDIR)$(PREFIX)/lib
cmake := $(libraries)/cmake/uncopy
include := $(DESTDIR)$(PREFIX)/include
man3 := $(DESTDIR)$(PREFIX)/share/man/man3
bash := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
zsh := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
fish := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
units := $(DESTDIR)$(PREFIX)/lib/systemd/system
unit_names := uncopy-log-recover@.service uncopy-metrics.service uncopy-textfile.service uncopy-textfile.timer
# What others read: a dashboard, and what containers get from their host.
shared := $(DESTDIR)$(PREFIX)/share/uncopy
# Who may open /dev/userfaultfd.
rules := $(DESTDIR)$(PREFIX)/lib/udev/rules.d
sysusers := $(DESTDIR)$(PREFIX)/lib/sysusers.d
functions := $(addprefix uncopy_,alloc aligned_alloc calloc realloc free usable_size owns options status)
soname := libuncopy_send.so.0
pages := uncopy uncopy-run uncopy-doctor uncopy-profile uncopy-report uncopy-ps uncopy-top uncopy-stats uncopy-metrics uncopy-release uncopy-log uncopy-net uncopy-service uncopy-completions uncopy-man

# RUSTFLAGS from the environment replace those of .cargo/config.toml; the unwind tables must stay.
ifneq ($(strip $(RUSTFLAGS)),)
export RUSTFLAGS += -C force-unwind-tables=yes
endif

.PHONY: build library command bench experiments memcached demo book test test-kernels test-net test-containers test-service test-suites test-checked test-faults test-current test-timed test-all packages machine machine-lanes machine-files lanes-kills store-crash test-dax fuzz bench-tracking bench-twin bench-unwind audit install uninstall clean help

build: library command ## Build target/release/uncopy, libuncopy.so, libuncopy_send.so and libuncopy_send.a

library:
	@scripts/need-cargo
	$(CARGO) build --release --locked -p uncopy-preload -p uncopy-send

# The libraries are optimised as one piece, because each hook crosses five crates. The programs would take minutes
# for that, and wait for the kernel: they are built as cargo does by itself.
command experiments: export CARGO_PROFILE_RELEASE_LTO = false
command experiments: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 16
command:
	@scripts/need-cargo
	$(CARGO) build --release --locked -p uncopy-cli

# Never installed. The experiments start what `make build` builds.
bench: build experiments ## Build target/release/uncopy-bench, which has the experiments, and what they measure (uncopy-files)

experiments:
	@scripts/need-cargo
	$(CARGO) build --release --locked -p uncopy-bench -p uncopy-files

memcached: library ## Build memcached from Debian's source, as it is and with its values in twin memory, for `uncopy-bench memcached` (network)
	@scripts/install-packages memcached
	UNCOPY_CFLAGS=-I$(CURDIR)/crates/sending/capi/include UNCOPY_LIBS="$(release)/libuncopy_send.a -lpthread -ldl -lm" \
	    examples/memcached/build $(target)/memcached
	install -m 755 $(target)/memcached/plain/memcached $(release)/memcached-plain
	install -m 755 $(target)/memcached/ported/memcached $(release)/memcached-twin

demo: ## Install Redis if it is missing, build, measure plain against uncopy (three minutes after the build)
	@scripts/install-packages demo
	@$(MAKE) --no-print-directory bench
	$(release)/uncopy-bench demo

book: ## Build the documents as a book in target/book, and check its links (network, once)
	@scripts/book

test: ## Install what the checks need if it is missing, build, run every check
	@scripts/test

test-suites: ## Build, run CPython's own tests plain and under uncopy in three ways, those of files also with logs (about an hour)
	@scripts/install-packages test
	@$(MAKE) --no-print-directory build
	scripts/suites all
	scripts/suites files

test-current: ## Build, drive some fifty of Debian 13's programs plain and under uncopy in four ways (root; about two hours)
	@scripts/install-packages current
	@$(MAKE) --no-print-directory build
	scripts/test-current

test-all: ## Run `make test` at full size, `make test-current` and every long search one after another, with a summary (a day)
	@scripts/test-all

test-service: ## Build, boot a container with systemd, let its packaged servers run under uncopy by `uncopy service` (root; a minute)
	@scripts/install-packages service
	@$(MAKE) --no-print-directory build
	scripts/test-service

test-containers: ## Build, let Redis run under uncopy in containers of Podman, confined as Docker and Kubernetes do it (root; seconds)
	@scripts/install-packages containers
	@$(MAKE) --no-print-directory build
	scripts/test-containers

test-kernels: ## Build, try the library on Debian's kernels 5.10, 6.1 and 6.12 in virtual machines without KVM (half an hour)
	@scripts/install-packages test
	@scripts/install-packages vm
	@$(MAKE) --no-print-directory bench
	$(CARGO) build --release --locked -p uncopy-tests
	scripts/test-kernels

test-net: ## Build; twenty million segments of the user-level TCP over bad links, a million to and from smoltcp, a GiB each way, and programs (minutes)
	@scripts/install-packages test
	@$(MAKE) --no-print-directory build
	UNCOPY_TEST_SIZE=3400 $(CARGO) test --locked --profile checked -p uncopy-tcp --test tcp -- --nocapture --skip smoltcp::
	UNCOPY_TEST_SIZE=340 $(CARGO) test --locked --profile checked -p uncopy-tcp -- --nocapture smoltcp:: oracles::
	UNCOPY_BIN_DIR=$(release) UNCOPY_TEST_SIZE=64 $(CARGO) test --locked -p uncopy-tests --test e2e -- --nocapture net:: net_programs::

test-timed: ## Build, run the tests that compare times: for a machine with nothing else to do
	@$(MAKE) --no-print-directory bench
	UNCOPY_BIN_DIR=$(release) $(CARGO) test --locked -p uncopy-bench --test bench -- --ignored trials::
	UNCOPY_BIN_DIR=$(release) UNCOPY_TEST_QUIET=1 $(CARGO) test --locked -p uncopy-tests --test e2e -- --test-threads 1 attach::

test-checked: ## Run the end-to-end tests against a library with debug assertions
	@scripts/install-packages test
	$(CARGO) build --profile checked --locked -p uncopy-cli -p uncopy-bench -p uncopy-files -p uncopy-preload
	UNCOPY_BIN_DIR=$(target)/checked $(CARGO) test --locked -p uncopy-tests

test-faults: ## Let every call to the kernel fail with every error number, once and from there on (about an hour)
	@scripts/install-packages test
	UNCOPY_TEST_FAULTS=all $(CARGO) test --locked -p uncopy-tests --test e2e -- --nocapture faults:: faults_log::

machine: build ## Run ten million random operations next to a model (about ten minutes)
	$(CARGO) build --release --locked -p uncopy-differential
	UNCOPY_BIN_DIR=$(release) $(release)/differential run --ops 10000000

machine-lanes: build ## The same with programs whose streams go to other programs, by lanes (about twenty minutes)
	$(CARGO) build --release --locked -p uncopy-differential
	UNCOPY_BIN_DIR=$(release) $(release)/differential run --ops 10000000 --mates 2

machine-files: build ## Run programs of files plain and with a log of each mode, and compare every call (about two hours)
	$(CARGO) build --release --locked -p uncopy-differential
	UNCOPY_BIN_DIR=$(release) $(release)/differential run --files yes --ops 1000000 --length 1000
	UNCOPY_BIN_DIR=$(release) $(release)/differential run --files only --ops 1000000 --length 1000

lanes-kills: ## Kill programs with lanes between them at every one of their system calls (about ten minutes)
	@scripts/install-packages test
	@$(MAKE) --no-print-directory build
	UNCOPY_TEST_KILLS=all $(CARGO) test --locked -p uncopy-tests --test e2e -- --nocapture lanes_killed::

store-crash: ## Millions of states after power loss, and hundreds of lives of programs with a log (about an hour)
	@scripts/install-packages test
	@$(MAKE) --no-print-directory build
	UNCOPY_TEST_SIZE=300 $(CARGO) test --locked -p uncopy-store --test crash -- --nocapture
	UNCOPY_TEST_SIZE=200 $(CARGO) test --locked -p uncopy-tests --test e2e -- --nocapture store:: store_apps::

test-dax: ## Kill programs with a log, and lose the power, on DAX in a virtual machine without KVM (about five minutes)
	@scripts/install-packages vm
	@$(MAKE) --no-print-directory build
	scripts/test-dax

fuzz: ## Fuzz the pure core, what lanes hear of peers, packets and TCP, a minute for each target
	@scripts/need-cargo
	scripts/fuzz

bench-tracking: ## Measure what tracking costs: lookup, insert and drop of a view, and a copy (about three minutes)
	@scripts/need-cargo
	$(CARGO) bench --locked -p uncopy-core -p uncopy-engine -- --noplot --verbose

bench-twin: ## Measure the twin allocator: allocating, lending, a write to memory in flight, waste (about two minutes)
	@scripts/need-cargo
	$(CARGO) bench --locked -p uncopy-twin -- --noplot

bench-unwind: ## Measure what taking a stack costs: known frames, and new ones (half a minute)
	@scripts/need-cargo
	$(CARGO) bench --locked -p uncopy-unwind -- --noplot

audit: ## Licences, duplicates, sources and known advisories of all dependencies (needs cargo-deny and network)
	$(CARGO) deny --locked check

# Paths of this machine do not get into the programs, so that the same commit gives the same bytes anywhere.
packages: export CARGO_TARGET_DIR = $(target)/packages
packages: export RUSTFLAGS = -C force-unwind-tables=yes --remap-path-prefix=$(CURDIR)=. --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=cargo
packages: ## Make target/packages/{a .deb, an .rpm, an archive with an installer}, after a build of their own
	@scripts/install-packages test
	@$(MAKE) --no-print-directory build
	scripts/packages $(target)/packages

install: ## Install under PREFIX (default /usr/local), below DESTDIR if given
	@test -x $(release)/uncopy -a -f $(release)/libuncopy.so -a -f $(release)/libuncopy_send.a || $(MAKE) --no-print-directory build
	install -D -m 755 $(release)/uncopy $(bin)/uncopy
	install -D -m 644 $(release)/libuncopy.so $(lib)/libuncopy.so
	ln -sf uncopy/libuncopy.so $(libraries)/libuncopy.so
	install -D -m 644 $(release)/libuncopy_send.so $(libraries)/$(soname)
	ln -sf $(soname) $(libraries)/libuncopy_send.so
	install -D -m 644 $(release)/libuncopy_send.a $(libraries)/libuncopy_send.a
	install -D -m 644 crates/sending/capi/include/uncopy.h $(include)/uncopy.h
	install -d $(libraries)/pkgconfig $(man) $(man3) $(bash) $(zsh) $(fish)
	sed -e 's|@prefix@|$(PREFIX)|' -e "s|@version@|$$($(release)/uncopy --version | cut -d ' ' -f 2)|" \
	    crates/sending/send/uncopy.pc.in > $(libraries)/pkgconfig/uncopy.pc
	install -D -m 644 crates/sending/send/cmake/uncopy-config.cmake $(cmake)/uncopy-config.cmake
	sed -e "s|@version@|$$($(release)/uncopy --version | cut -d ' ' -f 2)|" \
	    crates/sending/send/cmake/uncopy-config-version.cmake.in > $(cmake)/uncopy-config-version.cmake
	chmod 644 $(cmake)/uncopy-config-version.cmake
	for name in $(functions); do echo ".so man3/uncopy_alloc.3" > $(man3)/$$name.3; done
	sed -e "s|@version@|$$($(release)/uncopy --version | cut -d ' ' -f 2)|" \
	    crates/sending/send/man/uncopy_alloc.3 > $(man3)/uncopy_alloc.3
	install -d $(units)
	for name in $(unit_names); do sed -e 's|@prefix@|$(PREFIX)|' crates/cli/systemd/$$name.in > $(units)/$$name || exit 1; done
	chmod 644 $(unit_names:%=$(units)/%)
	install -D -m 644 crates/cli/grafana/dashboard.json $(shared)/grafana-dashboard.json
	install -D -m 644 crates/cli/systemd/60-uncopy.rules $(rules)/60-uncopy.rules
	install -D -m 644 crates/cli/systemd/uncopy.conf $(sysusers)/uncopy.conf
	install -d $(shared)
	sed 's|/usr/|$(PREFIX)/|g' packaging/container/uncopy.cdi.json > $(shared)/uncopy.cdi.json
	chmod 644 $(shared)/uncopy.cdi.json
	$(release)/uncopy man --dir $(man)
	$(release)/uncopy completions bash > $(bash)/uncopy
	$(release)/uncopy completions zsh > $(zsh)/_uncopy
	$(release)/uncopy completions fish > $(fish)/uncopy.fish
	chmod 644 $(libraries)/pkgconfig/uncopy.pc $(functions:%=$(man3)/%.3)
	chmod 644 $(pages:%=$(man)/%.1) $(bash)/uncopy $(zsh)/_uncopy $(fish)/uncopy.fish

uninstall: ## Remove what install put there
	rm -f $(bin)/uncopy $(lib)/libuncopy.so $(pages:%=$(man)/%.1)
	rm -f $(addprefix $(libraries)/,libuncopy.so $(soname) libuncopy_send.so libuncopy_send.a pkgconfig/uncopy.pc)
	rm -f $(addprefix $(cmake)/,uncopy-config.cmake uncopy-config-version.cmake)
	rm -f $(include)/uncopy.h $(functions:%=$(man3)/%.3)
	rm -f $(unit_names:%=$(units)/%) $(addprefix $(shared)/,grafana-dashboard.json uncopy.cdi.json) $(rules)/60-uncopy.rules $(sysusers)/uncopy.conf
	rm -f $(bash)/uncopy $(zsh)/_uncopy $(fish)/uncopy.fish
	-@rmdir $(lib) $(cmake) $(shared) 2>/dev/null

clean: ## Remove everything that was built
	$(CARGO) clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s%s\n", $$1, $$2 }' Makefile
