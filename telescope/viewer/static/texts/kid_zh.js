// 对孩子换一种说法：没有希腊字母，没有符号。

export const kidZh = {};
