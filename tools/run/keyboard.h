// The keys that somebody types while a subcommand redraws the terminal: they come one by one, and are not echoed.
#ifndef TOOLS_RUN_KEYBOARD_H
#define TOOLS_RUN_KEYBOARD_H

#include <stdbool.h>

// Sets standard input up if it is a terminal and this process is in its foreground; returns false otherwise. However
// the program ends, by a signal too, the terminal is then as it was before; also while it is stopped (Ctrl-Z). Called
// once, after signals_open.
bool keyboard_open(void);

// Returns the next key of standard input, 0 if there is none.
char keyboard_read(void);

// Restores the terminal. Nothing if it was not set up.
void keyboard_close(void);

#endif
