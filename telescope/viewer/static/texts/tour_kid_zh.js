// 讲给孩子的中文：导览。

export const tourKidZh = {
  "tour.score": "{score} 分",
  "tour.scoreCut": "{score} 分，被打断",
  "tour.cut": "打断",
  "tour.whole": "图里是 {all} 个词和符号中的 {shown} 个。看整条回答",
  "tour.toTokens": "一个词一个词地看这条回答",
  "tour.group": "同一道题的各条回答，按得分排",
  "tour.b": "拿来比的数",
  "tour.means.V": "写这个词之前，预言家猜后面还能得几分",
  "tour.means.r": "这个词自己得的分",
  "tour.means.d": "比猜的好多少或差多少",
  "tour.means.lam": "后面的惊喜往前传回多少",
  "tour.means.A": "自己的惊喜，加上后面传回来的",
  "tour.means.R": "预言家当时该猜的数",
  "tour.means.W": "和所有词的平均比过的功劳",
  "tour.means.rho": "小作者现在写它比以前多还是少",
  "tour.means.o": "整条回答的分",
  "tour.means.b": "拿来和总分比的数",
  "tour.means.sigma": "各条回答平常差多少",
  "tour.means.gA": "比别人好多少",
  "tour.means.share": "各个词怎样分",
};
