// 中文：compare 的词句。

export const compareZh = {};
