# caravan: make help
BUILD     ?= build
ifeq ($(origin CC),default)
CC        := gcc
endif
PREFIX    ?= /usr/local
LIBDIR    ?= $(PREFIX)/lib
OPTIMIZE  ?= -O2 -g
SANITIZE  ?=
# CI: WERROR=-Werror
WERROR    ?=
# V=1 prints whole commands.
V         ?=
# Tests that `make unit` and `make e2e` leave out: unit/NAME, e2e/NAME.
WITHOUT   ?=
VERSION   := 0.1.0

# msgpack-c calls itself msgpack in Debian 12 and msgpack-c in Debian 13.
PACKAGES   = libzmq $(shell pkg-config --exists msgpack-c && echo msgpack-c || echo msgpack) lmdb yaml-0.1 libpcre2-8 \
             libutf8proc libxxhash libzstd
# Opened when they are needed (shared/media/ffmpeg.h).
FFMPEG    := libavformat libavcodec libswscale libavutil
DEBIAN    := gcc g++ make pkg-config libzmq3-dev libmsgpack-dev liblmdb-dev libavformat-dev libavcodec-dev libswscale-dev \
             libavutil-dev libyaml-dev libpcre2-dev libutf8proc-dev libxxhash-dev libzstd-dev libdnnl-dev \
             libmicrohttpd-dev libcmocka-dev
LINT_DEBIAN := clang-format clang-tidy python3
FUZZ_DEBIAN := clang libclang-rt-dev
E2E_DEBIAN  := procps iproute2
PAGE_DEBIAN := chromium python3

# $(call say,CC) COMMAND: instead of the command prints CC and the target.
SILENT    := $(findstring s,$(firstword -$(MAKEFLAGS)))
say        = $(if $(V),,@$(if $(SILENT),,printf '%-4s %s\n' $(1) $(@:$(BUILD)/%=%);))

# pkg-config runs once, when the first file is compiled: before `make deps` it may not be installed.
PACKAGE_CFLAGS = $(eval PACKAGE_CFLAGS := $$(shell pkg-config --cflags $(PACKAGES) $(FFMPEG)))$(PACKAGE_CFLAGS)
PACKAGE_LIBS   = $(eval PACKAGE_LIBS := $$(shell pkg-config --libs $(PACKAGES)) -ldnnl -lgomp)$(PACKAGE_LIBS)

WARNINGS  := -Wall -Wextra -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wredundant-decls -Wpointer-arith \
             -Wvla -Wshadow -Wconversion -Wsign-conversion -Wundef -Wformat=2 -Wcast-qual -Wcast-align -Wwrite-strings \
             -Wimplicit-fallthrough -Wno-enum-float-conversion $(WERROR)
CPPFLAGS  += -I. -DCARAVAN_VERSION='"$(VERSION)"' $(PACKAGE_CFLAGS) -D_GNU_SOURCE
CFLAGS    += -std=c17 $(OPTIMIZE) $(WARNINGS) -ffp-contract=off -fno-math-errno -pthread $(SANITIZE)
LDFLAGS   += -pthread -Wl,--as-needed $(SANITIZE)
LDLIBS    += $(PACKAGE_LIBS) -lm

# SIMD code is chosen at run time; a file's suffix says what it is compiled for.
%_avx2.o:   SIMD_FLAGS := -mavx2 -mfma -mf16c
%/amx.o:    SIMD_FLAGS := -mamx-tile -mamx-bf16 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma
%_avx512.o: SIMD_FLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512

LIB_SOURCES  := $(wildcard shared/*/*.c shared/*/*/*.c kernels/*.c kernels/cpu/*.c)
LIB_OBJECTS  := $(LIB_SOURCES:%.c=$(BUILD)/%.o)
LIBRARY      := $(BUILD)/libcaravan.a
STAGES       := $(patsubst stages/%/main.c,%,$(wildcard stages/*/main.c))
TOOL_SOURCES := $(wildcard tools/*.c tools/*/*.c)
PROGRAMS     := $(STAGES:%=$(BUILD)/bin/caravan-%) $(if $(TOOL_SOURCES),$(BUILD)/bin/caravan)
UNIT_TESTS   := $(patsubst %.c,$(BUILD)/%,$(filter-out $(WITHOUT:%=tests/%.c),$(wildcard tests/unit/*.c)))
TEST_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/*.c))
OPS_SOURCES  := $(wildcard tests/ops/*.c)
OPS_HARNESS  := $(if $(OPS_SOURCES),$(BUILD)/tests/ops/harness)
HEADERS      := $(wildcard shared/*/*.h shared/*/*/*.h kernels/*.h kernels/cpu/*.h)

include make/cuda.mk

.PHONY: all programs page-pictures help reference deps packages test check unit ops e2e slurm-test demo demo-cora ablation bench parity lint format sanitize fuzz fuzz-smoke clean compile_commands.json
.DEFAULT_GOAL := all
.SECONDARY:

programs: $(PROGRAMS) # what the tests need: compiling the plug-in for GPUs takes minutes

all: programs $(CUDA_PLUGIN) ## build every executable into build/bin, and if nvcc is there the plug-in for GPUs into build/lib

help: ## list the targets
	@grep -hE '^[a-z0-9_.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

deps: ## install the Debian packages that the build needs
	@tools/deps --install $(DEBIAN)

packages: # names the missing packages, before the compiler fails without them
	@tools/deps --check $(DEBIAN)

$(BUILD)/%.o: %.c | packages
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(CPPFLAGS) $(CFLAGS) $(SIMD_FLAGS) -MMD -MP -c -o $@ $<

# The commit is compiled into one file, again when it has changed. An unpacked archive has none. git refuses to read the
# files of another user, which root installs.
$(BUILD)/commit: ALWAYS
	@mkdir -p $(@D)
	@commit=$$([ -e .git ] && git -c safe.directory='*' describe --always --dirty 2>/dev/null || echo unknown); \
	 [ "$$(cat $@ 2>/dev/null)" = "$$commit" ] || echo "$$commit" > $@

.PHONY: ALWAYS
ALWAYS:

$(BUILD)/tools/run/run_settings.o: CPPFLAGS += -DCARAVAN_COMMIT='"$(shell cat $(BUILD)/commit)"'
$(BUILD)/tools/run/run_settings.o: $(BUILD)/commit

$(LIBRARY): $(LIB_OBJECTS)
	@mkdir -p $(@D)
	@rm -f $@
	$(call say,AR)ar rcs $@ $^

# A stage's directory is its executable; the tool is every file below tools/.
define stage_rule
$(BUILD)/bin/caravan-$(1): $(patsubst %.c,$(BUILD)/%.o,$(wildcard stages/$(1)/*.c)) $(LIBRARY)
	@mkdir -p $$(@D)
	$$(call say,LD)$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(LDLIBS)
endef
$(foreach stage,$(STAGES),$(eval $(call stage_rule,$(stage))))
# It always decodes. And so a Debian package knows that it needs FFmpeg.
$(BUILD)/bin/caravan-frames: LDLIBS += -Wl,--no-as-needed $(shell pkg-config --libs $(FFMPEG))

# The files of the page of a run, which are part of the program; its scripts are one.
VIEW_FILES := $(addprefix $(BUILD)/tools/view/,index.html view.css view.js)
$(BUILD)/tools/view/view.js: $(wildcard tools/view/*.js)
	@mkdir -p $(@D)
	$(call say,CAT)cat $^ > $@

$(BUILD)/tools/view/index.html $(BUILD)/tools/view/view.css: $(BUILD)/%: %
	@mkdir -p $(@D)
	@cp $< $@

$(BUILD)/tools/view/view.o: CPPFLAGS += -DVIEW_DIR='"$(BUILD)/tools/view"'
$(BUILD)/tools/view/view.o: $(VIEW_FILES)

# Only what serves HTTP is linked with libmicrohttpd.
$(BUILD)/bin/caravan $(BUILD)/tests/unit/http: LDLIBS += -lmicrohttpd

$(BUILD)/bin/caravan: $(TOOL_SOURCES:%.c=$(BUILD)/%.o) $(LIBRARY)
	@mkdir -p $(@D)
	$(call say,LD)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Its own code computes little.
$(BUILD)/tests/unit/%.o: override OPTIMIZE := -O0 -g

# Unit tests of the tool's files.
$(BUILD)/tests/unit/run_status: $(BUILD)/tools/deployment.o $(addprefix $(BUILD)/tools/run/,run_status.o run_status_text.o)

$(BUILD)/tests/unit/view_run: $(addprefix $(BUILD)/tools/view/,run_files.o metric_table.o view_call.o)

$(BUILD)/tests/unit/processes: $(BUILD)/tools/deployment.o $(addprefix $(BUILD)/tools/run/,processes.o)

$(BUILD)/tests/unit/consistency: $(addprefix $(BUILD)/tools/,consistency/consistency_training.o eval/figures.o)

$(BUILD)/tests/unit/tokenizer: $(BUILD)/tools/demo/tokenizer_train.o

$(BUILD)/tests/unit/media: $(BUILD)/tools/demo/clip_writer.o

$(BUILD)/tests/unit/condition: $(BUILD)/tools/groups/condition.o

$(BUILD)/tests/unit/view_groups: $(BUILD)/tools/groups/condition.o $(BUILD)/tools/subcommand.o $(addprefix $(BUILD)/tools/view/,view_call.o view_search.o view_blocks.o view_groups.o)

$(BUILD)/tests/unit/replay: $(addprefix $(BUILD)/tools/groups/,difference.o replay_process.o)

$(BUILD)/tests/unit/service: $(BUILD)/tools/run/service.o

$(BUILD)/tests/unit/view_parts: $(addprefix $(BUILD)/tools/,groups/condition.o subcommand.o eval/figures.o) $(addprefix $(BUILD)/tools/view/,token_cuts.o view_call.o view_search.o view_blocks.o view_groups.o view_group.o view_compare.o view_trace.o)

$(BUILD)/tests/unit/world: $(addprefix $(BUILD)/tools/miniature/,world.o picture.o)

$(BUILD)/tests/unit/event_file: $(BUILD)/stages/optim/event_file.o

$(BUILD)/tests/unit/leaf: $(BUILD)/stages/optim/leaf.o

# A rank lies about its weights.
$(BUILD)/tests/unit/orders: LDFLAGS += -Wl,--wrap=model_hash
$(BUILD)/tests/unit/orders: $(addprefix $(BUILD)/stages/optim/,checkpoint.o event_file.o leaf.o metrics.o orders.o publish.o step.o)

$(BUILD)/tests/unit/answer_span: $(BUILD)/stages/refscore/answer_span.o

# It counts how often groups are encoded.
$(BUILD)/tests/unit/simulation: LDFLAGS += -Wl,--wrap=group_to_msgpack,--wrap=lmdb_txn_begin_write
$(BUILD)/tests/unit/simulation: LDFLAGS += -Wl,--wrap=clock_monotonic,--wrap=clock_realtime,--wrap=clock_realtime_ns
# Its models are guarded.
$(BUILD)/tests/unit/model_bits: LDFLAGS += -Wl,--wrap=backend_open
# It says whether there is a GPU.
$(BUILD)/tests/unit/open_device: LDFLAGS += -Wl,--wrap=access

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(TEST_OBJECTS) $(LIBRARY)
	$(call say,LD)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBRARY) $(LDLIBS) -lcmocka

$(BUILD)/tests/ops/harness: $(OPS_SOURCES:%.c=$(BUILD)/%.o) $(BUILD)/tests/support/guarded.o $(LIBRARY)
	$(call say,LD)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

unit: $(UNIT_TESTS) $(if $(filter emulated,$(DEVICE)),$(EMULATED)) ## run the unit tests
	@CARAVAN_LIB=$(BUILD)/lib tests/run-unit $(UNIT_TESTS)

# One target for each device, so that they run side by side. A target's name has no colon: cuda:1 is ops-cuda_1.
OPS_DEVICES := $(subst :,_,$(DEVICE:%=ops-%))
.PHONY: $(OPS_DEVICES)
ops: $(OPS_DEVICES) ## check every version of every operation against the reference

$(OPS_DEVICES): ops-%: $(OPS_HARNESS) $(if $(filter emulated,$(DEVICE)),$(EMULATED))
	@CARAVAN_LIB=$(BUILD)/lib $(OPS_HARNESS) --device $(subst _,:,$*)

e2e: programs $(if $(filter emulated,$(DEVICE)),$(EMULATED)) ## run the programs together, as a user does
	@tools/deps --check $(E2E_DEBIAN)
	@BUILD=$(BUILD) tests/run-e2e $(filter-out $(WITHOUT:%=tests/%.sh),$(wildcard tests/e2e/*.sh))

page-pictures: programs ## take pictures of the page of the demo's run, into build/page; needs chromium
	@BIN=$(BUILD)/bin tests/view/pictures $(BUILD)/page

slurm-test: programs ## run a pipeline in a job of two nodes under Slurm, which is started on this machine; needs root
	@BIN=$(abspath $(BUILD))/bin tests/slurm/run

demo: deps ## train and evaluate a small model, in minutes, on the CPU
	@$(MAKE) --no-print-directory programs
	@BIN=$(BUILD)/bin tools/demo/demo

demo-cora: deps ## train a small model with and without a consistency model, in minutes, on the CPU
	@$(MAKE) --no-print-directory programs
	@BIN=$(BUILD)/bin tools/demo/demo-cora

ablation: deps ## train a small model with every method, three seeds each, and compare them; ABLATION=long takes ten
	@$(MAKE) --no-print-directory programs
	@BIN=$(BUILD)/bin ABLATION=$(ABLATION) tools/miniature/ablation

reference: programs ## write REFERENCE.md again from the tables
	$(BUILD)/bin/caravan reference > REFERENCE.md

check: ops unit e2e ## run the unit, operation and end-to-end tests

test: deps ## install packages, build, run every test, static checks, fuzz seeds, sanitizers
	@tools/deps --install $(E2E_DEBIAN) $(LINT_DEBIAN) $(FUZZ_DEBIAN) || true
	@tools/deps --install $(PAGE_DEBIAN) || true
	@$(MAKE) --no-print-directory check lint-if-there fuzz-if-there
	@$(MAKE) --no-print-directory sanitize sanitize-thread

include $(filter-out make/cuda.mk,$(wildcard make/*.mk))
DEPENDENCIES = $(shell find $(BUILD) -name '*.d' -type f 2>/dev/null)
-include $(DEPENDENCIES)

clean: ## remove everything that was built
	rm -rf build build-* compile_commands.json
