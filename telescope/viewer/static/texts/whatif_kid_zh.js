// 对孩子：假如，以及同组比较的图。

export const whatifKidZh = {
  "whatif.title": "换一种算法会怎样？",
  "whatif.reset": "恢复原样",
  "whatif.gamma": "后面的小分算多少",
  "whatif.lam": "惊喜往回传多远",
  "whatif.whiten": "和别的回答比一比",
  "whatif.recorded": "现在是原来的数。动一动滑块，看看功劳怎样变；原来的数用灰色留着。",
  "whatif.changed": "还是同样的回答、同样的猜测；{samples}的功劳重新算。",
  "whatif.samples": "记下来的全部 {n} 条回答",
  "whatif.samples.of": "{every} 条里记下来的全部 {n} 条回答",
  "whatif.samples.all": "全部 {n} 条回答",
  "whatif.samples.file": "这个文件里的 {n} 条回答",
  "whatif.whitening.off": "功劳不和别的回答比。",
  "whatif.whitening.scaled": "然后把功劳和这些回答的比一比。",
  "whatif.whitening.plain": "然后把功劳和这些回答的比一比。",
  "whatif.groups": "每条回答和同一道题的别的回答比。",
  "whatif.group": "同一道题的回答",
  "whatif.group.picture": "{n} 条回答，越靠右越好；点击可打开",
  "whatif.mean": "平均 {x}",
};
