# caravan: make help
BUILD     ?= build
ifeq ($(origin CC),default)
CC        := gcc
endif
PREFIX    ?= /usr/local
OPTIMIZE  ?= -O2 -g
SANITIZE  ?=
# CI: WERROR=-Werror
WERROR    ?=
VERSION   := 0.1.0

PACKAGES  := libzmq msgpack lmdb libavformat libavcodec libswscale libavutil yaml-0.1 json-c libpcre2-8 libutf8proc libxxhash
DEBIAN    := gcc make pkg-config libzmq3-dev libmsgpack-dev liblmdb-dev libavformat-dev libavcodec-dev libswscale-dev \
             libavutil-dev libyaml-dev libjson-c-dev libpcre2-dev libutf8proc-dev libxxhash-dev libdnnl-dev libcmocka-dev
LINT_DEBIAN := clang-format clang-tidy python3
FUZZ_DEBIAN := clang libclang-rt-dev
E2E_DEBIAN  := procps iproute2

# Set-up comes first: without the packages no flags can be asked for.
ifeq ($(filter help deps clean format,$(MAKECMDGOALS)),)
MISSING := $(shell tools/deps --missing $(DEBIAN))
ifneq ($(MISSING),)
SETUP := $(shell tools/deps --install $(DEBIAN) 1>&2 || echo failed)
ifneq ($(SETUP),)
$(error missing packages; type: sudo apt-get install $(MISSING))
endif
endif
PACKAGE_CFLAGS := $(shell pkg-config --cflags $(PACKAGES))
PACKAGE_LIBS   := $(shell pkg-config --libs $(PACKAGES)) -ldnnl -lgomp
endif

WARNINGS  := -Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wredundant-decls -Wpointer-arith \
             -Wvla -Wshadow -Wconversion -Wsign-conversion -Wundef -Wformat=2 -Wcast-qual -Wcast-align -Wwrite-strings \
             -Wimplicit-fallthrough $(WERROR)
CPPFLAGS  += -I. -DCARAVAN_VERSION='"$(VERSION)"' $(PACKAGE_CFLAGS) -D_GNU_SOURCE
CFLAGS    += -std=c17 $(OPTIMIZE) $(WARNINGS) -ffp-contract=off -fno-math-errno -pthread $(SANITIZE)
LDFLAGS   += -pthread $(SANITIZE)
LDLIBS    += $(PACKAGE_LIBS) -lm

# Vector code is chosen at run time; a file's suffix says what it is compiled for.
%_avx2.o:   VECTOR := -mavx2 -mfma -mf16c
%_avx512.o: VECTOR := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512

LIB_SOURCES  := $(wildcard shared/*/*.c kernels/cpu/*.c)
LIB_OBJECTS  := $(LIB_SOURCES:%.c=$(BUILD)/%.o)
LIBRARY      := $(BUILD)/libcaravan.a
STAGES       := $(patsubst stages/%/main.c,%,$(wildcard stages/*/main.c))
TOOL_SOURCES := $(wildcard tools/*.c)
PROGRAMS     := $(STAGES:%=$(BUILD)/bin/caravan-%) $(if $(TOOL_SOURCES),$(BUILD)/bin/caravan)
UNIT_TESTS   := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/*.c))
OPS_SOURCES  := $(wildcard tests/ops/*.c)
OPS_HARNESS  := $(if $(OPS_SOURCES),$(BUILD)/tests/ops/harness)
HEADERS      := $(wildcard shared/*/*.h kernels/*.h kernels/cpu/*.h)

.PHONY: all help reference deps test check unit ops e2e demo bench parity lint format sanitize fuzz fuzz-smoke install clean compile_commands.json
.DEFAULT_GOAL := all
.SECONDARY:

all: $(PROGRAMS) ## every executable into build/bin

help: ## what can be typed
	@grep -hE '^[a-z_.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

deps: ## install the Debian packages that the build needs
	tools/deps --install $(DEBIAN)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(VECTOR) -MMD -MP -c -o $@ $<

$(LIBRARY): $(LIB_OBJECTS)
	@mkdir -p $(@D)
	@rm -f $@
	ar rcs $@ $^

# A stage's folder is its executable; the tool is every file in tools/.
define stage_rule
$(BUILD)/bin/caravan-$(1): $(patsubst %.c,$(BUILD)/%.o,$(wildcard stages/$(1)/*.c)) $(LIBRARY)
	@mkdir -p $$(@D)
	$(CC) $(LDFLAGS) -o $$@ $$^ $(LDLIBS)
endef
$(foreach stage,$(STAGES),$(eval $(call stage_rule,$(stage))))

$(BUILD)/bin/caravan: $(TOOL_SOURCES:%.c=$(BUILD)/%.o) $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(LIBRARY)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

$(BUILD)/tests/ops/harness: $(OPS_SOURCES:%.c=$(BUILD)/%.o) $(LIBRARY)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

unit: $(UNIT_TESTS) ## unit tests alone
	@tests/run-unit $(UNIT_TESTS)

ops: $(OPS_HARNESS) ## every version of every operation against the reference
	$(OPS_HARNESS)

e2e: all ## the programs together, as a user runs them
	@tools/deps --install $(E2E_DEBIAN)
	@BUILD=$(BUILD) tests/run-e2e

demo: all ## from nothing to a trained small model and a table, in minutes, on the CPU
	@BIN=$(BUILD)/bin tools/demo

reference: all ## write REFERENCE.md anew from the tables
	$(BUILD)/bin/caravan reference > REFERENCE.md

check: unit ops e2e

test: check ## set-up, build, every test, static checks, fuzz seeds, sanitizers
	@tools/deps --install $(LINT_DEBIAN) $(FUZZ_DEBIAN) || true
	@$(MAKE) --no-print-directory lint-if-there fuzz-if-there
	@$(MAKE) --no-print-directory sanitize sanitize-thread

include $(wildcard make/*.mk)
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

install: all ## into PREFIX (/usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin/

clean: ## what was built
	rm -rf build build-* compile_commands.json
