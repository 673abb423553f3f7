// 中文：samples 的词句。

export const samplesZh = {};
