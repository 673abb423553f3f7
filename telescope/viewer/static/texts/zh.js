// 中文。键名：面板.词；{name} 处填入一个值。

import { compareZh } from "./compare_zh.js";
import { runZh } from "./run_zh.js";
import { samplesZh } from "./samples_zh.js";
import { tokenZh } from "./token_zh.js";
import { tourZh } from "./tour_zh.js";
import { whatifZh } from "./whatif_zh.js";

export const zh = {
  "page.loading": "读取中……",
  "page.error": "读取失败：{error}",
  "page.retry": "重试",
  "page.absent": "这个文件里没有存；用 telescope view 可以看到。",
  "page.lang": "语言",
  "page.theme": "颜色",
  "page.theme.auto": "跟随系统",
  "page.theme.light": "浅色",
  "page.theme.dark": "深色",
  "page.kid": "12 岁",
  "page.views": "页面的各部分",
  "view.runs": "运行",
  "view.run": "训练",
  "view.samples": "回答",
  "view.compare": "对比",
  "view.tour": "导览",
  ...runZh,
  ...samplesZh,
  ...tokenZh,
  ...compareZh,
  ...tourZh,
  ...whatifZh,
};
