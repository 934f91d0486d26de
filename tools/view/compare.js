"use strict";
const comparePage = {title: "Compare", path: "/compare", async draw(view) {}};
