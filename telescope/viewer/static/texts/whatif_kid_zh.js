// 对孩子：假如，以及同组比较的图。

export const whatifKidZh = {
  "whatif.title": "换一种算法会怎样？",
  "whatif.reset": "恢复原样",
  "whatif.gamma": "后面的小分算多少",
  "whatif.lam": "惊喜往回传多远",
  "whatif.whiten": "和别的答案比一比",
  "whatif.recorded": "现在是原来的数。动一动滑块，看看功劳怎样变；原来的数用灰色留着。",
  "whatif.changed": "还是同样的答案、同样的猜测；{samples}的功劳重新算。",
  "whatif.samples": "记下来的全部 {n} 条答案",
  "whatif.samples.of": "{every} 条里记下来的全部 {n} 条答案",
  "whatif.samples.all": "全部 {n} 条答案",
  "whatif.samples.file": "这个文件里的 {n} 条答案",
  "whatif.whitening.off": "功劳不和别的答案比。",
  "whatif.whitening.scaled": "然后把功劳和这些答案的比一比。",
  "whatif.whitening.plain": "然后把功劳和这些答案的比一比。",
  "whatif.groups": "每条答案和同一道题的别的答案比。",
  "whatif.group": "同一道题的答案",
  "whatif.group.picture": "{n} 条答案，越靠右越好；点击可打开",
  "whatif.mean": "平均 {x}",
};
