"use strict";
const groupPage = {title: "Group", path: "/groups", async draw(view) {}};
