// 中文：run 的词句。

export const runZh = {};
