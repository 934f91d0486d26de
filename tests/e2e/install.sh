#!/usr/bin/env bash
# What make install puts into a directory works there, and make uninstall removes all of it. The manual pages have no
# mistakes, completion proposes what the programs take, and each compiled file is one short line.
. tests/e2e/common.sh
build=${BUILD:-build}
make() { env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u BUILD make --no-print-directory "$@"; }
install="BUILD=$build CUDA=0 DESTDIR=$work/root PREFIX=/usr LIBDIR=/usr/local/lib" # LIBDIR as compiled: other scripts run these programs
root=$work/root/usr

make $install install >"$work/log" 2>&1 || fail "make install: $(cat "$work/log")"
version=$("$bin/caravan" --version)
[ "$("$root/bin/caravan" --version)" = "$version" ] || fail "the installed program is not of version $version"
cmp pipelines/templates/default.txt "$root/share/caravan/pipelines/templates/default.txt"
[ -x "$root/share/caravan/pipelines/examples/consistency.py" ] || fail "an example cannot be run"
[ -f "$root/share/doc/caravan/REFERENCE.md" ] || fail "no documentation"

# ---- manual pages ----

for program in "$root"/bin/*; do
    page=$root/share/man/man1/${program##*/}.1
    [ -s "$page" ] || fail "no manual page of ${program##*/}"
    "$program" --help >"$work/help"
    if grep '.\{81\}' "$work/help"; then fail "$program --help is wider than 80 columns"; fi
    for option in $(grep -oE '^  --[a-z0-9-]+' "$work/help"); do
        grep -qF -- "\\fB${option//-/\\-}\\fR" "$page" || fail "$page: no $option"
    done
    if command -v man >/dev/null; then
        LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l "$page" >"$work/text" 2>"$work/err" || fail "$(cat "$work/err")"
        [ ! -s "$work/err" ] || fail "$page: $(cat "$work/err")"
    fi
done
for subcommand in $("$bin/caravan" --help | sed -nE 's/^  ([a-z-]+) .*/\1/p'); do
    if "$bin/caravan" "$subcommand" --help | grep '.\{81\}'; then fail "caravan $subcommand --help is wider than 80 columns"; fi
    grep -q "^.SS \"caravan ${subcommand//-/\\\\-}" "$root/share/man/man1/caravan.1" || fail "caravan(1): no $subcommand"
done
command -v man >/dev/null || echo "manual pages were not formatted: man is not installed"
expect 64 "there is no such program" "$bin/caravan" reference --man caravan-nothing

# ---- completion ----

# propose WORD...: what completion proposes for the last word.
propose() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _caravan "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s ' "${COMPREPLY[@]}"
}
. "$root/share/bash-completion/completions/caravan"
[ "$(propose caravan gr)" = "graph groups " ] || fail "subcommands: $(propose caravan gr)"
[ "$(propose caravan graph --t)" = "--text " ] || fail "options of a subcommand: $(propose caravan graph --t)"
[ "$(propose caravan groups se)" = "select " ] || fail "actions: $(propose caravan groups se)"
[ "$(propose caravan-rollout --max-n)" = "--max-new-tokens " ] || fail "options: $(propose caravan-rollout --max-n)"
[ "$(propose caravan-reward --method ca)" = "care " ] || fail "values: $(propose caravan-reward --method ca)"
[ "$(propose caravan-source --data pipelines/tem)" = "pipelines/templates " ] || fail "files"
[ "$(propose caravan run pipelines/war)" = "pipelines/warm-up.yaml " ] || fail "operands"
[ "$(readlink "$root/share/bash-completion/completions/caravan-reward")" = caravan ] || fail "no link for caravan-reward"

# zsh and fish complete lines themselves; in zsh, functions that print their words take the place of the programs.
cat >"$work/.zshrc" <<'END'
PS1= fpath=($completions $fpath)
autoload -Uz compinit
compinit -u -d $ZDOTDIR/dump
for program in caravan caravan-reward; do functions[$program]='print -r -- "<$*>"'; done
print ready
END
cat >"$work/complete.zsh" <<'END'
zmodload zsh/zpty
zpty shell zsh -d -i
zpty -r shell out '*ready*'
zpty -w shell "$1"
zpty -r shell out '*<*>*'
print -r -- "${${out##*<}%%>*}"
END
# completed LINE WORDS: zsh must complete the line, which has tabulators, to these words.
completed() {
    got=$(cd "$root" && completions=$root/share/zsh/site-functions ZDOTDIR=$work timeout 120 zsh "$work/complete.zsh" "$1") || true
    [ "$got" = "$2" ] || fail "zsh completed '$1' to '$got'"
}
if command -v zsh >/dev/null; then
    completed $'caravan grap\t--te\t' 'graph --text'
    completed $'caravan groups sele\t' 'groups select'
    completed $'caravan-reward --meth\tcar\t' '--method=care'
    completed $'caravan run sha\t' 'run share'
else
    echo "completion was not tried in zsh, which is not installed"
fi
if command -v fish >/dev/null; then
    fish() { PATH=$root/bin:$PATH HOME=$work XDG_DATA_DIRS=$root/share command fish -c "complete -C '$1'" | cut -f 1 | paste -sd ' '; }
    [ "$(fish 'caravan gr')" = "graph groups" ] || fail "fish: $(fish 'caravan gr')"
    [ "$(fish 'caravan groups se')" = select ] || fail "fish: $(fish 'caravan groups se')"
    [ "$(fish 'caravan-reward --method ca')" = care ] || fail "fish: $(fish 'caravan-reward --method ca')"
    [ "$(fish 'caravan-source --media-r')" = --media-root ] || fail "fish: $(fish 'caravan-source --media-r')"
else
    echo "completion was not tried in fish, which is not installed"
fi

# ---- uninstall ----

make $install uninstall >/dev/null
left=$(find "$work/root" ! -type d)
[ -z "$left" ] || fail "make uninstall left $left"

# ---- the Debian package ----

if command -v dpkg-shlibdeps >/dev/null; then
    make $install ZSHDIR=/usr/share/zsh/vendor-completions DESTDIR="$work/deb" install >/dev/null
    DEBEMAIL=somebody@debian.org tools/make-deb "$work/deb" 1.2.3 "$work/caravan.deb" >/dev/null
    dpkg-deb -f "$work/caravan.deb" Depends | grep -q 'libzmq5' || fail "the package does not need libzmq5"
    [ "$(dpkg-deb -f "$work/caravan.deb" Version)" = 1.2.3 ] || fail "the package is of another version"
    dpkg-deb -c "$work/caravan.deb" >"$work/list"
    for file in bin/caravan-optim share/man/man1/caravan.1.gz share/caravan/pipelines/warm-up.yaml \
        share/caravan/pipelines/miniature/start/model.safetensors share/fish/vendor_completions.d/caravan.fish; do
        grep -q " ./usr/$file$" "$work/list" || fail "the package has no $file"
    done
    if command -v lintian >/dev/null; then
        lintian --fail-on error,warning "$work/caravan.deb" >"$work/lintian" 2>&1 || fail "lintian: $(cat "$work/lintian")"
    fi
else
    echo "the Debian package was not made: dpkg-dev is not installed"
fi

# ---- the image's recipe ----

# What .dockerignore lets through is all that make deb needs.
mkdir "$work/context"
cp -r $(sed -n 's/^!//p' .dockerignore) "$work/context"
make -C "$work/context" -n deb >"$work/log" 2>&1 || fail "the image cannot be built: $(cat "$work/log")"

# ---- what make prints ----

object=shared/base/clock.o
mkdir -p "$work/build/deb/root/vendor_completions.d" # as make deb leaves it
short=$(make -B BUILD="$work/build" "$work/build/$object" | tail -1)
[ "$short" = "CC   $object" ] || fail "make printed '$short'"
make -B V=1 BUILD="$work/build" "$work/build/$object" | grep -q -- '-std=c17' || fail "V=1 does not print the command"

# ---- another LIBDIR ----

# compile LIBDIR: prints what make prints, and fails unless the object file has the directory.
compile() {
    make BUILD="$work/build" LIBDIR="$1" "$work/build/kernels/ops.o"
    grep -qF "$1" "$work/build/kernels/ops.o" || fail "LIBDIR=$1 is not compiled in"
}
compile /opt/first >/dev/null
compile /opt/first | grep -q '^CC' && fail "the same LIBDIR compiles again"
compile /opt/second >/dev/null
