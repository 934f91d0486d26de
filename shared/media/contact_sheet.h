// A contact sheet shows a person the frames of a clip.
#ifndef SHARED_MEDIA_CONTACT_SHEET_H
#define SHARED_MEDIA_CONTACT_SHEET_H

#include "shared/store/frame_store.h"

// Writes the frames as one PNG, side by side in rows. UNAVAILABLE when the file cannot be written.
status contact_sheet_write(const struct frames *frames, const char *path);

#endif
