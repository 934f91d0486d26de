# Layout, chosen static checks, include layers, a comment on every public prototype.
FORMATTED := $(shell git ls-files '*.c' '*.h' 2>/dev/null)

.PHONY: lint lint-if-there
lint: compile_commands.json $(LIBRARY) ## zero warnings: clang-format, clang-tidy, layers, comments, symbols
	clang-format --dry-run -Werror $(FORMATTED)
	python3 tests/lint/layers .
	@tests/lint/symbols $(LIBRARY)
	@printf '%s\n' $(filter %.c,$(FORMATTED)) | xargs -P 2 -n 4 clang-tidy --quiet -p . 2>/dev/null

# A user's machine may lack the checkers; CI has them.
lint-if-there:
	@if command -v clang-format clang-tidy python3 >/dev/null; then $(MAKE) --no-print-directory lint; \
	 else echo "lint left out: type: sudo apt-get install $(LINT_DEBIAN)"; fi

format: ## lay out all C files
	clang-format -i $(FORMATTED)

compile_commands.json: ## for editors and clang-tidy
	@tools/compile-commands "$(subst ",\",$(CC) $(CPPFLAGS) $(CFLAGS))" $(LIB_SOURCES) $(TOOL_SOURCES) $(wildcard stages/*/*.c tests/*/*.c) > $@
