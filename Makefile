# make demo       see what lacuna is for
# make test       what must hold, in a quarter of an hour with the build
# make test-all   everything that must hold, half an hour: the games of adversaries, Ceph, benchmarks and papers in small too
# make test-long  the same with the campaign, killed clients and robbed servers more
# make campaign   20,000 power cuts and 20,000 openings of what lies for each format, replay games, and levels used together, in ranges
#                 that a later run goes on with; PLAYS="cuts/flash" plays some alone, JOBS=2 two ranges at a time
# make bench      measure against peers, write tables and plots; ONLY="disks levels" takes sections alone
# make bench-compare   A=COMMIT B=COMMIT: whether one takes more processor time; `make bench-self-test` shows that it can tell
# make papers     redo the figures and tables of the papers; ONLY="models phone" takes sections alone, QUICK=1 the smallest sizes,
#                 to see that everything works
# make fuzz       feed the parsers nonsense, FUZZ_SECONDS each
# make lint       formatting, clippy, licences
# make check      lint, and the tests that need no root, no packages and no cluster
# make install    PREFIX=/usr/local: the program, completions, manual pages, units and what else belongs to it
# make uninstall  PREFIX=/usr/local: removes the same; disks and vaults stay
# make deb        a Debian package of the same, which lintian has nothing against: target/debian; `make deb-test` tries it in a clean root
# make release    an archive that runs on other distributions: target/dist; `make release-test` tries it on three
# make publish-check   whether a registry would take the crates

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
# In the campaign: power cuts for each cipher and layout, for `flash`, objects and headers in all; deaths of the process and power cuts
# for each cipher of `sealed`, for each chip and for objects in all; openings of a disk, store or vault whose medium lies, of each
# format; replay games against each scheme, sessions of each format with levels that are used together, and power cuts while such
# disks are closed; ranges at a time; and where the randomness begins (test-long too).
CUTS ?= 20000
LIES ?= 20000
GAMES ?= 20000
JOBS ?= 1
FSX_SECONDS ?= 3600
# Clients killed for each cipher and layout in RADOS, servers for each format with levels and number of levels, and servers
# with a keeper for each kind of their clients, in test-long.
KILLS ?= 250
SEED ?= 1
# Servers robbed of a disk in RADOS while they write, in test-long.
ROBBED ?= 200
# Attacks on each kind of disk in a hostile pool, and pairs of blocks of a vault that are destroyed, in test-long.
HOSTILE ?= 5000
PAIRS ?= 2000
# Sessions of disks with levels that are traced for each format, in test-long.
TRACES ?= 156
# For each fuzz target.
FUZZ_SECONDS ?= 600
LACUNA = target/release/lacuna
# The workspace of the papers, in the same target folder as the product's.
PAPERS = --manifest-path papers/Cargo.toml --target-dir $(or $(CARGO_TARGET_DIR),target)
# What the fuzz targets share, without the targets.
FUZZ = --manifest-path fuzz/Cargo.toml --target-dir $(or $(CARGO_TARGET_DIR),target) --no-default-features --lib
# The program outside the workspace that has a format of its own; it takes the versions of the workspace.
SIXTH = --manifest-path examples/sixth-format/Cargo.toml
# Where losetup, mkfs and their like are, which not everybody's path has.
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: all check demo test test-all test-long campaign bench bench-compare bench-self-test papers fuzz lint install uninstall deb deb-test release release-test publish-check packages

all:
	$(CARGO) build --release -p lacuna-cli

packages:
	scripts/ensure-packages.sh

# The programs that the demonstration drives are installed beside the build.
demo:
	scripts/ensure-packages.sh build
	scripts/ensure-packages.sh demo & packages=$$!; $(MAKE) all; built=$$?; wait $$packages && exit $$built
	scripts/demo.sh $(LACUNA)

test: packages
	CARGO="$(CARGO)" scripts/test.sh quick

test-all: packages
	CARGO="$(CARGO)" scripts/test.sh

test-long: all
	scripts/ensure-packages.sh long
	scripts/systemd-guest.sh get || echo "skipped: disks in a system that boots"
	scripts/tree.sh $(LACUNA)
	scripts/outside.sh
	scripts/deb-test.sh $(LACUNA)
	scripts/publish-check.sh --allow-dirty
	scripts/release.sh
	scripts/release-test.sh
	LACUNA_FSX_SECONDS=$(FSX_SECONDS) LACUNA_SHARE=all LACUNA_KILLS=$(KILLS) LACUNA_ROBBED=$(ROBBED) LACUNA_SEED=$(SEED) CARGO="$(CARGO)" scripts/test.sh --release
	LACUNA_HOSTILE=$(HOSTILE) $(CARGO) test --release -p lacuna-games --test hostile_pool -- --nocapture
	LACUNA_PAIRS=$(PAIRS) $(CARGO) test --release --workspace --test vault_damage --test vault_rescue --test vault_two_blocks -- --nocapture
	LACUNA_TRACES=$(TRACES) LACUNA_SEED=$(SEED) $(CARGO) test --release --workspace --test whole traces:: -- --nocapture
	LACUNA_SWEEP=all $(CARGO) test --release --workspace --test errno --test levels_errno -- --nocapture
	LACUNA_SWEEP=all $(CARGO) test --release --workspace --test vault_errno -- --nocapture
	$(MAKE) campaign

# What a range of seeds gave is kept in target/campaign, and a line for each play in docs/campaigns.tsv. Of each play, `make test-all` has 1 % or more.
campaign:
	CUTS=$(CUTS) LIES=$(LIES) GAMES=$(GAMES) SEED=$(SEED) JOBS=$(JOBS) CARGO="$(CARGO)" scripts/campaign.sh $(PLAYS)

bench: packages all
	$(CARGO) run --release -p lacuna-bench -- $(ONLY:%=--only %) $(if $(ONLY),--out docs) $(RECORD:%=--record %)

papers: all
	$(CARGO) run --release $(PAPERS) --bin papers -- $(ONLY:%=--only %) $(if $(QUICK),--quick,$(if $(ONLY),--out docs))

bench-compare:
	$(CARGO) run --release -p lacuna-bench -- compare $(A) $(B)

bench-self-test:
	$(CARGO) run --release -p lacuna-bench -- self-test

fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS)

# Crates whose tests take files and memory alone, and not long: the power cuts of deniable and oblivious take minutes.
HERMETIC = contracts crypto medium kept-memory header sealed sealed-objects integrity vault-store vault levels nbd mount daemon rados sim testkit
# Games on the same formats.
GAMES_OF_FILES = integrity_game integrity_ablation vault_game header_lies sealed_lies objects_lies vault_lies hostile_pool resumed_twice

check: lint
	$(CARGO) test -p lacuna-storage $(HERMETIC:%=-p lacuna-%)
	$(CARGO) test -p lacuna-games $(GAMES_OF_FILES:%=--test %)
	$(CARGO) test $(PAPERS) -p eint
	$(CARGO) test $(FUZZ)
	$(CARGO) test -p lacuna-cli --bins --test architecture --test messages --test skipped_errors

lint:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path papers/Cargo.toml --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) fmt $(SIXTH) --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy $(PAPERS) --workspace --all-targets -- -D warnings
	$(CARGO) clippy $(FUZZ) --tests -- -D warnings
	cp Cargo.lock examples/sixth-format/Cargo.lock
	$(CARGO) clippy $(SIXTH) --target-dir $(or $(CARGO_TARGET_DIR),target) --all-targets -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny check && $(CARGO) deny --manifest-path papers/Cargo.toml check --config deny.toml; \
	else echo "skipped: cargo-deny is not installed (licences and advisories)"; fi

# The place is checked before a build that takes minutes. Root builds nothing for another user: with sudo, and where root has no cargo,
# the program is that of `make`.
install:
	@scripts/install.sh --check "$(PREFIX)" "$(DESTDIR)"
	@if [ -x $(LACUNA) ] && { [ -n "$$SUDO_USER" ] || ! command -v $(firstword $(CARGO)) >/dev/null; }; then :; else $(MAKE) all; fi
	scripts/install.sh $(LACUNA) "$(PREFIX)" "$(DESTDIR)"

uninstall:
	scripts/install.sh --uninstall "$(PREFIX)" "$(DESTDIR)"

# DEB_PROGRAM: another program than the one that is built.
DEB_PROGRAM ?= $(LACUNA)
deb: $(if $(filter $(LACUNA),$(DEB_PROGRAM)),all)
	scripts/deb.sh $(DEB_PROGRAM)

deb-test: all
	scripts/ensure-packages.sh long
	scripts/deb-test.sh $(LACUNA)

release:
	scripts/release.sh

release-test:
	scripts/release-test.sh

publish-check:
	scripts/publish-check.sh
