// 对孩子换一种说法：没有希腊字母，没有符号。

import { compareKidZh } from "./compare_kid_zh.js";
import { runKidZh } from "./run_kid_zh.js";
import { tokenKidZh } from "./token_kid_zh.js";
import { tourKidZh } from "./tour_kid_zh.js";
import { whatifKidZh } from "./whatif_kid_zh.js";

export const kidZh = {
  ...tourKidZh,
  ...runKidZh,
  ...tokenKidZh,
  ...whatifKidZh,
  ...compareKidZh,
};
