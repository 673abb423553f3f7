// 中文：token 的词句。

export const tokenZh = {};
