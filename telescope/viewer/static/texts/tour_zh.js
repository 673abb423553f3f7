// 中文：tour 的词句。

export const tourZh = {};
