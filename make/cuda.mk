# The backends that are plug-ins, both from kernels/cuda: build/lib/libcaravan-cuda.so for GPUs (nvcc) and
# build/lib/libcaravan-emulated.so, which runs the same sources on the CPU (g++ and tests/emulate; for tests).
#
# make builds the plug-in for GPUs where nvcc is found. CUDA=1 insists on it, CUDA=0 leaves it out.
CUDA ?=
NVCC ?= $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
ifeq ($(origin CXX),default)
CXX := g++
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1, but there is no nvcc: set PATH or NVCC)
endif

# What a plug-in takes from the program.
PLUGIN_IMPORTS := fail fail_prefix fail_oom fail_trace log_debug log_info mem_new mem_resize element_size \
                  tensor_rows tensor_columns tensor_reshape
LDFLAGS        += $(PLUGIN_IMPORTS:%=-Wl,--export-dynamic-symbol=%)
CPPFLAGS       += -DCARAVAN_LIBDIR='"$(LIBDIR)"'

CUDA_HOST    := $(wildcard kernels/cuda/*.c)
CUDA_DEVICE  := $(wildcard kernels/cuda/*.cu)
CXX_WARNINGS := -Wall -Wextra -Wredundant-decls -Wpointer-arith -Wvla -Wshadow -Wconversion -Wsign-conversion -Wundef \
                -Wformat=2 -Wcast-qual -Wimplicit-fallthrough -Wno-unknown-pragmas $(WERROR)

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
	$(CC) $(CPPFLAGS) $(EMULATED_FLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/emulated/%.o: %.cu | packages
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(EMULATED_FLAGS) $(CXXFLAGS) -MMD -MP -x c++ -c -o $@ $<

$(BUILD)/emulated/%.o: %.cpp | packages
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(EMULATED_FLAGS) $(CXXFLAGS) -MMD -MP -c -o $@ $<

$(EMULATED): $(EMULATED_OBJECTS)
	@mkdir -p $(@D)
	$(CXX) -shared -pthread $(SANITIZE) -o $@ $^

.PHONY: emulated
emulated: $(EMULATED) ## build the plug-in that runs the GPU's code on the CPU
