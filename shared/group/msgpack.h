// What the two sides of the msgpack form share.
#ifndef SHARED_GROUP_MSGPACK_H
#define SHARED_GROUP_MSGPACK_H

enum {
    ALL_SECTIONS = -1, // in place of a group_section: the whole group
    EXT_JSON = 1,      // type of the ext that carries an unknown key's JSON text
};

#endif
