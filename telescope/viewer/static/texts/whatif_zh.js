// 中文：假如，以及同组比较的图。

export const whatifZh = {
  "whatif.title": "假如",
  "whatif.reset": "恢复记录",
  "whatif.estimator": "估计器",
  "whatif.gamma": "γ",
  "whatif.lam": "λ",
  "whatif.by_length": "λ 随长度变，α = {alpha}：每条回答不同",
  "whatif.whiten": "白化",
  "whatif.loss": "策略损失",
  "whatif.clipped": "被裁剪 {before} → {now}",
  "whatif.recorded":
    "现在显示的都是记录的数。换一个估计器、γ 或 λ，就能看到同一次采样会得到什么；记录的数仍以灰色显示。",
  "whatif.pending": "计算中……",
  "whatif.changed": "同一次采样，同样的 V；{samples}都重新计算。",
  "whatif.samples": "本步记录的全部 {n} 条回答",
  "whatif.samples.of": "整批 {every} 条中记录的全部 {n} 条回答",
  "whatif.samples.all": "整批的全部 {n} 条回答",
  "whatif.samples.file": "这个文件里本步的 {n} 条回答",
  "whatif.whitening.off": "不白化：Â = A。",
  "whatif.whitening.scaled":
    "它们一起白化，并按比例校准，使记录的设置恰好得到记录的 Â：μ = {mean}，σ = {std}。",
  "whatif.whitening.plain": "它们一起白化：μ = {mean}，σ = {std}。训练时没有白化。",
  "whatif.groups": "每条回答只和同一提示下记录的回答比较。",
  "whatif.lam_critic": "critic 的目标用自己的 λ：{lam}。",
  "whatif.stop": "。",
  "whatif.refused": "有 {n} 种无法在这份记录上尝试",
};
