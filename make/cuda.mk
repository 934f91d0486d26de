# The backends that are plug-ins, both from kernels/cuda: build/lib/libcaravan-cuda.so for GPUs (nvcc) and
# build/lib/libcaravan-emulated.so, which runs the same sources on the CPU (g++ and tests/emulate; for tests).
#
# `make` and `make install` build the plug-in for GPUs if nvcc is there; CUDA=1 insists, CUDA=0 leaves it out. Tests do
# without it: compiling it for four kinds of GPU takes minutes, and the emulator has the same sources.
CUDA ?=
NVCC ?= $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
ifeq ($(origin CXX),default)
CXX := g++
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1, but there is no nvcc: set PATH or NVCC)
endif

# What a plug-in takes from the program.
PLUGIN_IMPORTS := fail fail_prefix fail_trace log_debug log_info mem_new mem_resize mem_grow element_size \
                  tensor_rows tensor_columns tensor_reshape tensor_within tensor_shaped patch_shape_counts
LDFLAGS        += $(PLUGIN_IMPORTS:%=-Wl,--export-dynamic-symbol=%)
CPPFLAGS       += -DCARAVAN_LIBDIR='"$(LIBDIR)"'

# Another LIBDIR compiles the file that has it again.
$(BUILD)/libdir: ALWAYS
	@mkdir -p $(@D)
	@[ "$$(cat $@ 2>/dev/null)" = "$(LIBDIR)" ] || echo "$(LIBDIR)" > $@

$(BUILD)/kernels/ops.o: $(BUILD)/libdir

CUDA_HOST    := $(wildcard kernels/cuda/*.c)
CUDA_DEVICE  := $(wildcard kernels/cuda/*.cu)
CXX_WARNINGS := -Wall -Wextra -Wredundant-decls -Wpointer-arith -Wvla -Wshadow -Wconversion -Wsign-conversion -Wundef \
                -Wformat=2 -Wcast-qual -Wimplicit-fallthrough -Wno-unknown-pragmas $(WERROR)

# The devices that are tested; a GPU with DEVICE=cuda.
DEVICE ?= emulated cpu

# ---- emulated ----

# Kernels read arrays of one type as another, as GPUs allow. Of 1,024 threads each would have a fake stack.
EMULATED         := $(BUILD)/lib/libcaravan-emulated.so
EMULATED_FLAGS   := -DCARAVAN_EMULATED -Itests/emulate -fPIC -fvisibility=hidden \
                    $(if $(findstring address,$(SANITIZE)),--param asan-use-after-return=0)
EMULATED_SOURCES := $(CUDA_HOST) $(CUDA_DEVICE) $(wildcard tests/emulate/*.cpp)
EMULATED_OBJECTS := $(patsubst %,$(BUILD)/emulated/%.o,$(basename $(EMULATED_SOURCES)))
CXXFLAGS         += -std=c++17 $(OPTIMIZE) $(CXX_WARNINGS) -ffp-contract=off -fno-math-errno -fno-strict-aliasing \
                    -pthread $(SANITIZE)

$(BUILD)/emulated/%.o: %.c | packages
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(CPPFLAGS) $(EMULATED_FLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/emulated/%.o: %.cu | packages
	@mkdir -p $(@D)
	$(call say,CXX)$(CXX) $(CPPFLAGS) $(EMULATED_FLAGS) $(CXXFLAGS) -MMD -MP -x c++ -c -o $@ $<

$(BUILD)/emulated/%.o: %.cpp | packages
	@mkdir -p $(@D)
	$(call say,CXX)$(CXX) $(CPPFLAGS) $(EMULATED_FLAGS) $(CXXFLAGS) -MMD -MP -c -o $@ $<

# The sums of tensor cores take most of the time, and touch no memory but their arguments.
$(BUILD)/emulated/tests/emulate/fused_sums.o: override SANITIZE :=
$(BUILD)/emulated/tests/emulate/fused_sums.o: override OPTIMIZE := -O2 -g

$(EMULATED): $(EMULATED_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LD)$(CXX) -shared -pthread $(SANITIZE) -o $@ $^

$(BUILD)/tests/unit/emulator: $(patsubst %.cpp,$(BUILD)/emulated/%.o,tests/unit/emulator.cpp $(wildcard tests/emulate/*.cpp)) $(BUILD)/tests/support/unit.o
	@mkdir -p $(@D)
	$(call say,LD)$(CXX) $(LDFLAGS) -o $@ $^ -lcmocka

UNIT_TESTS += $(if $(findstring thread,$(SANITIZE)),,$(BUILD)/tests/unit/emulator)

.PHONY: emulated
emulated: $(EMULATED) ## build the plug-in that runs the GPU's code on the CPU

.PHONY: mutations
mutations: ## put mistakes into the kernels and sums, one at a time, which the tests must find (takes minutes)
	tests/emulate/mutations $(BUILD)/mutations

# ---- for GPUs ----

# Code for each kind of GPU, and PTX for those to come. A spill or any other warning of ptxas is an error.
CUDA_CODE    := -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90 \
                -gencode arch=compute_100,code=sm_100 -gencode arch=compute_120,code=sm_120
NVCC_FLAGS   := -std=c++17 -O3 --fmad=false -Werror all-warnings -Xptxas -v,-warn-spills,-warn-lmem-usage $(CUDA_CODE) \
                -Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off
CUDA_HEADERS := $(if $(NVCC),-isystem $(patsubst %/bin/,%/include,$(dir $(NVCC))))
CUDA_PLUGIN  := $(if $(filter 0,$(CUDA)),,$(if $(NVCC),$(BUILD)/lib/libcaravan-cuda.so))
CUDA_OBJECTS := $(CUDA_HOST:%.c=$(BUILD)/cuda/%.o) $(CUDA_DEVICE:%.cu=$(BUILD)/cuda/%.cu.o)

$(BUILD)/cuda/%.o: %.c | packages
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(CPPFLAGS) $(CUDA_HEADERS) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

# What ptxas says of each kernel is kept in FILE.ptxas.
$(BUILD)/cuda/%.cu.o: %.cu | packages
	@mkdir -p $(@D)
	$(call say,NVCC)$(NVCC) $(NVCC_FLAGS) -I. -DCARAVAN_VERSION='"$(VERSION)"' -MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$(@:.o=.ptxas) 2>&1 || \
	    { grep -v 'ptxas info' $(@:.o=.ptxas) >&2; rm -f $@; exit 1; }

$(BUILD)/lib/libcaravan-cuda.so: $(CUDA_OBJECTS)
	@mkdir -p $(@D)
	$(call say,LD)$(NVCC) -shared -cudart static -Xlinker --exclude-libs,ALL -o $@ $^

# kernels/cuda/registers.txt lists the registers of each kernel, as of one version of nvcc. Others give other numbers.
.PHONY: registers registers-update
$(BUILD)/registers.txt: $(CUDA_PLUGIN) tools/cuda-registers
	@tools/cuda-registers "$(NVCC)" $(filter %.cu.o,$(CUDA_OBJECTS)) > $@

registers: $(BUILD)/registers.txt ## compare the registers of CUDA's kernels with the committed table
	@if [ "$$(head -n 1 $<)" = "$$(head -n 1 kernels/cuda/registers.txt)" ]; then diff -u kernels/cuda/registers.txt $<; \
	 else echo "registers left out: the table is of $$(head -n 1 kernels/cuda/registers.txt), this is $$(head -n 1 $<)"; fi

registers-update: $(BUILD)/registers.txt ## write that table again
	cp $< kernels/cuda/registers.txt
